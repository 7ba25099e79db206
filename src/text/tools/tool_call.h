// The JSON of tool calls as models write it: {"name": ..., "arguments": {...}}, or an array of such objects.
//
// Thread safety: free functions without state.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "wire/output_parsing.h"

namespace millrace {

using wire::kMaxToolNameBytes;
inline constexpr std::size_t kMaxToolCalls = 128;  // of one output; what would be another is text

struct ToolCall {
  std::string name;
  std::string arguments;  // a JSON object, as the model wrote it
};

// Letters, digits, '_', '-' and '.', at most kMaxToolNameBytes: what a function may be called.
bool is_tool_name(std::string_view name);
bool is_tool_name_byte(char byte);

// Appends the calls that `json` is. "arguments" and "parameters" are two names of one member; absent or null is an
// empty object. False, and nothing appended: `json` is no call, or has a name that `names` lacks (empty: any name).
bool read_tool_calls(std::string_view json, const std::vector<std::string>& names, std::vector<ToolCall>& out);
// The same of arguments that stand behind their name.
bool read_named_call(std::string_view name, std::string_view arguments, const std::vector<std::string>& names,
                     std::vector<ToolCall>& out);

}  // namespace millrace
