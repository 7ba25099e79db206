// Which dialect a model's output is in: found in its chat template's text, or named by a flag. And the markers of each
// dialect: texts that a real tokenizer has as one added token, so that ordinary text cannot forge them.
//
// Thread safety: free functions without state.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "wire/output_parsing.h"

namespace millrace {

using wire::ReasoningDialect;
using wire::ToolDialect;

// What a chat template writes for calls and for reasoning; kNone where it knows none.
ToolDialect find_tool_dialect(std::string_view chat_template);
ReasoningDialect find_reasoning_dialect(std::string_view chat_template);

// The values of --tool-parser and --reasoning-parser. `chat_template` decides for "auto". kInvalidArgument lists the
// names.
Result<ToolDialect> tool_dialect_of(std::string_view flag, std::string_view chat_template);
Result<ReasoningDialect> reasoning_dialect_of(std::string_view flag, std::string_view chat_template);

std::span<const std::string_view> markers_of(ToolDialect dialect);
std::span<const std::string_view> markers_of(ReasoningDialect dialect);

// Whether an added token of this text belongs to the form of calls, of their results or of reasoning. Text of a client
// never becomes one (text/tokenizer.h).
bool is_chat_marker(std::string_view token);

}  // namespace millrace
