// Reasoning before what a grammar describes: free text from <think> to </think>, of which the grammar wants nothing.
//
// Thread safety: free functions without state.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/grammar.h"

namespace millrace::grammar {

inline constexpr std::string_view kOpenReasoning = "<think>", kCloseReasoning = "</think>";

// Where the text begins.
enum class TextStart : uint8_t {
  kContent,    // nowhere is reasoning
  kMayReason,  // it stands at the start, between <think> and </think>, or nowhere
  kReasons,    // the text begins inside it
};

// Up to two, as templates and models write them between the parts of a text.
ExprPtr line_ends();

// The content behind reasoning, which may not end the text: there is a content in any case. Up to two line ends may
// stand between them. `markers`: the texts of the added tokens that are meant where the tags stand. Appends to `rules`.
ExprPtr behind_reasoning(Rules& rules, const ExprPtr& content, const std::vector<std::string>& markers,
                         TextStart start);

// A grammar with reasoning before it.
Rules behind_reasoning(Rules document, const std::vector<std::string>& markers, TextStart start);

}  // namespace millrace::grammar
