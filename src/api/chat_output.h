// ChatOutput: one choice's parsed output as the members of a chat answer: content, reasoning_content, tool_calls.
//
// Owner: the format of the answer, for each choice. Thread safety: one thread at a time.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "api/tool_fields.h"
#include "wire/output_parsing.h"

namespace millrace::api {

class ChatOutput {
 public:
  explicit ChatOutput(const OutputView& view) : view_(view) {}

  // Streaming: the members of each "delta" that the events make, in their sequence. `last`: no more will come. A call's
  // name comes before its arguments.
  std::vector<std::string> deltas(const std::vector<wire::OutputEvent>& events, bool last);
  // Not streaming: the members of the "message", of all events.
  std::string message(const std::vector<wire::OutputEvent>& events);
  // "tool_calls" for an output with calls that came to its end, else empty: the reason that it gives is the right one.
  std::string_view finish_reason(const wire::Finish& finish) const;

 private:
  void begin_call(const std::string& name, std::vector<std::string>& out);
  void flush_reasoning(std::vector<std::string>& out);

  const OutputView view_;
  int calls_ = 0;
  bool skipped_ = false;   // the call under way is left out
  std::string reasoning_;  // that waits until it is complete
};

}  // namespace millrace::api
