// Regular expressions as grammars: the syntax that PCRE, Python, ECMAScript and JSON Schema share. Served: characters
// and their escapes, `.`, classes with \d \w \s (ASCII) and their complements, groups, alternatives, greedy and lazy
// quantifiers, ^ and $ at the ends. What is no regular language (look-around, back-references) or needs more than the
// text so far (\b), and properties (\p), is refused by name. Thread safety: free functions without state.
#pragma once

#include <string_view>

#include "base/function_ref.h"
#include "base/status.h"
#include "grammar/expr.h"

namespace millrace::grammar {

inline constexpr int kMaxRepeat = 10'000;  // in {n,m}

// How a character of the pattern's language stands in the text: as itself, or escaped inside a JSON string.
using CharWriter = FunctionRef<ExprPtr(const CharSet&)>;

enum class RegexMatch {
  kFull,      // the text is a match, as with a fullmatch
  kAnywhere,  // the text has a match in it, unless ^ and $ anchor it, as JSON Schema's pattern
};

// kInvalidArgument names the offset and what stands there.
Result<ExprPtr> parse_regex(std::string_view pattern, RegexMatch match, CharWriter write);

// "\d", "\w" and "\s" without the backslash; the capital letters are the complements.
CharSet regex_class(char letter);

}  // namespace millrace::grammar
