// EBNF as grammars, in the dialect of llama.cpp's GBNF, which XGrammar and SGLang read too:
//
//   root  ::= "yes" | "no" | list       a text is what `root` derives
//   list  ::= "[" item ("," item)* "]"
//   item  ::= [a-z]{1,8} | "\x41" | [^"\\\u0000-\u001F] | .
//   # a comment
//
// Thread safety: free functions without state.
#pragma once

#include <string_view>

#include "base/status.h"
#include "grammar/grammar.h"

namespace millrace::grammar {

inline constexpr std::size_t kMaxRules = 4'096;

// kInvalidArgument names the line and what stands there, or the rule that is missing.
Result<Rules> parse_ebnf(std::string_view source);

}  // namespace millrace::grammar
