// Structural tags as grammars: a text is free until one of the triggers comes; from there on it is one of the tags that
// begin with this trigger, its beginning, a JSON document of its schema and its end; then it is free again, and so on.
// Tool calls are such tags.
//
//   {"triggers": ["<tool_call>"], "structures": [{"begin": "<tool_call>\n", "schema": {...}, "end": "\n</tool_call>"}]}
//
// Beside a `document`, a JSON Schema as a text, the text is a document of it or one or several of the tags, with up to
// two line ends between them, and nothing else.
//
// Where the tokenizer has a part of a tag as one added token, that token alone is meant (token_mark.h). Tags are looked
// for behind the reasoning alone.
//
// Thread safety: free functions without state.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "grammar/grammar.h"
#include "grammar/reasoning.h"

namespace millrace::grammar {

inline constexpr std::size_t kMaxTags = 256;        // of one source; as many triggers
inline constexpr std::size_t kMaxTagBytes = 1'024;  // of a trigger, a beginning, an end

// `markers`: the texts of the added tokens that may stand in a tag. kInvalidArgument, kUnsupported: the path, and what
// stands there.
Result<Rules> parse_structural_tag(std::string_view source, const std::vector<std::string>& markers, TextStart start);

}  // namespace millrace::grammar
