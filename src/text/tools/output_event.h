// OutputEvent: what the parsers of a request's output find in it, in the output's sequence.
//
// A call is kCallBegin with its name, then its arguments in one or several fragments, then kCallEnd. The fragments
// joined are the JSON object as the model wrote it. Nothing is taken back: a call that is begun is complete and well
// formed.
//
// Thread safety: values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

struct OutputEvent {
  enum class Kind : uint8_t { kText, kReasoning, kCallBegin, kArguments, kCallEnd };
  Kind kind = Kind::kText;
  std::string text;

  friend bool operator==(const OutputEvent&, const OutputEvent&) = default;
};

using OutputEvents = std::vector<OutputEvent>;

// Appends; text behind text, and reasoning behind reasoning, is one event. An empty text or reasoning is none.
inline void add_event(OutputEvents& out, OutputEvent::Kind kind, std::string_view text) {
  const bool joins = kind == OutputEvent::Kind::kText || kind == OutputEvent::Kind::kReasoning;
  if (joins && text.empty()) return;
  if (joins && !out.empty() && out.back().kind == kind) {
    out.back().text += text;
  } else {
    out.push_back({kind, std::string(text)});
  }
}

}  // namespace millrace
