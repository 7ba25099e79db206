// Lists of wire::OutputEvent, what the parsers of an output find in it.
//
// Thread safety: free functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "wire/output_parsing.h"

namespace millrace {

using wire::OutputEvent;
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
