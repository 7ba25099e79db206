#include "api/content_blocks.h"

#include <utility>

namespace millrace::api {

Status wrong_type(const std::string& name, const Json& value, std::string_view wanted) {
  return invalid_argument("{} is of type {}; wanted {}", name, json_type_name(value), wanted);
}

Result<std::string> read_block_type(const Json& block, const std::string& name) {
  if (!block.is_object()) return wrong_type(name, block, "an object");
  const Json* type = json_find(block, "type");
  if (!type || !type->is_string()) return invalid_argument("{}.type is no string; wanted one", name);
  return type->get<std::string>();
}

Result<std::string> read_block_string(const Json& block, const char* key, const std::string& name) {
  const Json* value = json_find(block, key);
  if (!value || !value->is_string()) return invalid_argument("{}.{} is no string; wanted one", name, key);
  return value->get<std::string>();
}

void append_line(std::string& text, bool& any, const std::string& more) {
  if (any) text += '\n';
  text += more;
  any = true;
}

void ChatTurn::end(nlohmann::ordered_json& messages) {
  if (role == "assistant" || has_text) {
    nlohmann::ordered_json message = {{"role", role}, {"content", std::exchange(text, {})}};
    if (has_reasoning) message["reasoning_content"] = std::exchange(reasoning, {});
    if (!calls.empty()) message["tool_calls"] = std::exchange(calls, nlohmann::ordered_json::array());
    messages.push_back(std::move(message));
  }
  has_text = has_reasoning = false;
}

}  // namespace millrace::api
