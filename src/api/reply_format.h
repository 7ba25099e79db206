// ReplyFormat: how an endpoint family writes its JSON, and what it may know of a choice.
//
// Thread safety: a format belongs to one Reply, which calls it under its mutex.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "wire/messages.h"

namespace millrace::api {

// One choice of an answer. What grows (text, tokens, logprobs) is all of it in answers that are not streamed and in
// cumulative streams, and in other streams what is new since the last event.
struct ChoiceState {
  int index = 0;                // its number in the answer
  std::string text;             // with what is echoed before it
  std::vector<int32_t> tokens;  // generated ones; at the end with the stop or end token
  std::vector<wire::TokenLogprobs> logprobs, prompt_logprobs;
  wire::Usage usage;
  uint64_t weight_version = 0;
  double elapsed_seconds = 0;  // since the HTTP request came
  Boxed<wire::Finish> finish;
};

// Fragments are complete JSON texts; events are objects.
class ReplyFormat {
 public:
  virtual ~ReplyFormat() = default;
  // Streaming: the first chunk of a choice (empty: none), and the chunks that tell its news.
  virtual std::string opening(int /*index*/) { return ""; }
  virtual void events(const ChoiceState& choice, std::vector<std::string>& out) = 0;
  // Streaming: the chunk that carries the usage alone.
  virtual std::string usage(const wire::Usage& usage) { return body("", usage); }
  // Not streaming: one choice, and the whole body around the choices, which are joined by commas.
  virtual std::string choice(const ChoiceState& choice) = 0;
  virtual std::string body(std::string_view choices, const wire::Usage& usage) = 0;
};

// The pieces that the OpenAI formats share.
std::string_view finish_reason(const wire::Finish& finish);              // "stop", "length" or "abort"
void append_matched_stop(std::string& out, const wire::Finish& finish);  // "matched_stop": 7, "text" or null
void append_usage(std::string& out, const wire::Usage& usage);           // {"prompt_tokens": ...}
// `prefix` and 24 random hex digits.
std::string make_id(std::string_view prefix);
int64_t unix_seconds();

}  // namespace millrace::api
