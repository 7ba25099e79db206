// One line in the log for each request that generates:
//
//   POST /v1/chat/completions model=demo prompt=35 cached=32 output=20 first=12ms speed=210/s total=0.1s finish=stop
//   id=x
//
// and for each one that is refused before that: its error. What is not known stands as "-". `finish` is the reason of
// the first choice; "disconnected" where the client left.
//
// Thread safety: free functions.
#pragma once

#include <string_view>

#include "base/status.h"
#include "http/message.h"
#include "wire/generation.h"

namespace millrace::api {

struct RequestFigures {
  wire::Usage usage;         // of all choices
  double first_seconds = 0;  // until the first token; 0: none came
  double total_seconds = 0;
  double accepted_seconds = 0;  // until the scheduler had the first of them: tokenized, and sent there
  double admitted_seconds = 0;  // what it waited in the queue then
};

void log_request(const http::RequestLabel& request, std::string_view model, const RequestFigures& figures,
                 std::string_view finish);
// `why`: not OK.
void log_refusal(const http::RequestLabel& request, std::string_view model, const Status& why);

// "stop", "length", "abort", "error".
const char* reason_name(wire::FinishReason reason);

}  // namespace millrace::api
