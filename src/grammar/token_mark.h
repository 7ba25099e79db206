// Tokens that are markers, in the bytes of a grammar. Where the tokenizer has a text such as <tool_call> as one added
// token, that token alone is meant, and ordinary tokens that spell it are free text. In a grammar's bytes a marker is
// its text between two bytes that UTF-8 never has; a vocabulary for these grammars has its added tokens in this form,
// and no other token with one of the two bytes.
//
// Thread safety: free functions without state.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace millrace::grammar {

inline constexpr char kMarkBegin = '\xFF', kMarkEnd = '\xFE';
std::string token_mark(std::string_view token_text);
// Whether a token's bytes could be taken for a mark.
bool has_mark_byte(std::string_view bytes);
// Each marker in the text, the longest first where several begin at one place, as its mark.
std::string with_marks(std::string_view text, const std::vector<std::string>& markers);

}  // namespace millrace::grammar
