#include "text/tools/tool_call.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/json.h"
#include "text/json_cursor.h"

namespace millrace {
namespace {

bool is_wanted(std::string_view name, const std::vector<std::string>& names) {
  return is_tool_name(name) && (names.empty() || std::find(names.begin(), names.end(), name) != names.end());
}

// The members keep the bytes that the model wrote, which a tree would not. All of `json` is known to be JSON.
Result<ToolCall> read_object(JsonCursor& cursor) {
  ToolCall call;
  RETURN_IF_ERROR(cursor.enter('{'));
  std::string key;
  while (true) {
    ASSIGN_OR_RETURN(const bool more, cursor.next_member(key));
    if (!more) break;
    if (key == "name") {
      RETURN_IF_ERROR(cursor.read_string(call.name));
      continue;
    }
    ASSIGN_OR_RETURN(const std::string_view value, cursor.skip_value());
    if (key != "arguments" && key != "parameters") continue;
    if (!call.arguments.empty()) return invalid_argument("there are two objects of arguments; wanted one");
    call.arguments = value == "null" ? "{}" : value;
    if (call.arguments.front() != '{') return invalid_argument("the arguments are no object; wanted one");
  }
  if (call.arguments.empty()) call.arguments = "{}";
  return call;
}

Result<std::vector<ToolCall>> read_all(std::string_view json) {
  RETURN_IF_ERROR(parse_json(json).status());
  std::vector<ToolCall> calls;
  JsonCursor cursor(json);
  if (cursor.peek() == '{') {
    ASSIGN_OR_RETURN(calls.emplace_back(), read_object(cursor));
    return calls;
  }
  RETURN_IF_ERROR(cursor.enter('['));
  while (true) {
    ASSIGN_OR_RETURN(const bool more, cursor.next_element());
    if (!more) return calls;
    if (calls.size() == kMaxToolCalls) return invalid_argument("there are over {} calls", kMaxToolCalls);
    ASSIGN_OR_RETURN(calls.emplace_back(), read_object(cursor));
  }
}

}  // namespace

bool is_tool_name_byte(char byte) {
  return (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') || (byte >= '0' && byte <= '9') || byte == '_' ||
         byte == '-' || byte == '.';
}

bool is_tool_name(std::string_view name) {
  return !name.empty() && name.size() <= kMaxToolNameBytes && std::all_of(name.begin(), name.end(), is_tool_name_byte);
}

bool read_tool_calls(std::string_view json, const std::vector<std::string>& names, std::vector<ToolCall>& out) {
  Result<std::vector<ToolCall>> calls = read_all(json);
  if (!calls.ok() || calls->empty()) return false;
  for (const ToolCall& call : *calls) {
    if (!is_wanted(call.name, names)) return false;
  }
  out.insert(out.end(), std::make_move_iterator(calls->begin()), std::make_move_iterator(calls->end()));
  return true;
}

bool read_named_call(std::string_view name, std::string_view arguments, const std::vector<std::string>& names,
                     std::vector<ToolCall>& out) {
  if (!is_wanted(name, names) || !arguments.starts_with('{') || !parse_json(arguments).ok()) return false;
  out.push_back({std::string(name), std::string(arguments)});
  return true;
}

}  // namespace millrace
