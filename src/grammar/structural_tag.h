// Structural tags as grammars: a text is free until one of the triggers comes; from there on it is one of the tags that
// begin with this trigger, its beginning, a JSON document of its schema and its end; then it is free again, and so on.
// Tool calls are such tags.
//
//   {"triggers": ["<tool_call>"], "structures": [{"begin": "<tool_call>\n", "schema": {...}, "end": "\n</tool_call>"}]}
//
// Tokens that are markers. Where the tokenizer has a part of a tag as one added token, such as <tool_call>, that token
// alone is meant, and ordinary tokens that spell it are free text. In a grammar's bytes a marker is its text between
// two bytes that UTF-8 never has; a vocabulary for these grammars has its added tokens in this form (token_mark), and
// no other token with one of the two bytes.
//
// Thread safety: free functions without state.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "grammar/grammar.h"

namespace millrace::grammar {

inline constexpr std::size_t kMaxTags = 256;        // of one source; as many triggers
inline constexpr std::size_t kMaxTagBytes = 1'024;  // of a trigger, a beginning, an end

inline constexpr char kMarkBegin = '\xFF', kMarkEnd = '\xFE';
std::string token_mark(std::string_view token_text);
// Whether a token's bytes could be taken for a mark.
bool has_mark_byte(std::string_view bytes);

// Where the text begins: tags are looked for behind the reasoning alone.
enum class TextStart : uint8_t {
  kContent,    // nowhere is reasoning
  kMayReason,  // it stands at the start, between <think> and </think>, or nowhere
  kReasons,    // the text begins inside it
};

// `markers`: the texts of the added tokens that may stand in a tag. kInvalidArgument, kUnsupported: the path, and what
// stands there.
Result<Rules> parse_structural_tag(std::string_view source, const std::vector<std::string>& markers, TextStart start);

}  // namespace millrace::grammar
