// Sends a workload to a server with an OpenAI-compatible API and notes when its answers came.
//
// Closed loop: `clients` clients, each of which asks for the next request when its last one was answered. Open loop:
// each request leaves at its arrival, by the next free of `clients` connections; where none is free it waits, and the
// wait counts. Every request has a deadline; a server that hangs costs an error, not the test.
//
// run() blocks its caller and starts its own threads, one a client.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "http/client.h"
#include "load/report.h"
#include "load/workload.h"

namespace millrace::load {

inline constexpr int kMaxClients = 4096;

struct GeneratorOptions {
  http::Url url;
  std::string api_key;
  std::string model;  // empty: the first that GET /v1/models names
  int clients = 16;
  bool chat = false;       // /v1/chat/completions instead of /v1/completions; the workload must be of text
  bool ignore_eos = true;  // answers of exactly the length asked for, where the server knows the field
  int64_t timeout_ms = 600'000;
};

// Called now and then with the number of ended requests, on the caller's thread.
using Progress = std::function<void(int64_t done)>;

// One outcome for each request, in the workload's order. kUnavailable where the server does not answer at all,
// kInvalidArgument for options out of range.
Result<std::vector<Outcome>> run(const GeneratorOptions& options, const Workload& workload, const Progress& progress);

// What requests ask for: the option's model, else the first that the server names. Errors as run()'s.
Result<std::string> model_of(const GeneratorOptions& options);

// True where an event of a streamed answer holds text, of the answer or its reasoning, that is not empty.
bool holds_text(std::string_view event);

}  // namespace millrace::load
