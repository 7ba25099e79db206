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

void ChatContent::add_text(const std::string& more) {
  if (parts_.empty() || parts_.back()["type"] != "text") {
    parts_.push_back({{"type", "text"}, {"text", more}});
    return;
  }
  auto& text = parts_.back()["text"].get_ref<std::string&>();
  text += '\n';
  text += more;
}

nlohmann::ordered_json ChatContent::take() {
  nlohmann::ordered_json parts = std::exchange(parts_, nlohmann::ordered_json::array());
  if (parts.empty()) return "";
  if (parts.size() == 1 && parts[0]["type"] == "text") return std::move(parts[0]["text"]);
  return parts;
}

void ChatTurn::end(nlohmann::ordered_json& messages) {
  if (role == "assistant" || !content.empty()) {
    nlohmann::ordered_json message = {{"role", role}, {"content", content.take()}};
    if (!reasoning.empty()) message["reasoning_content"] = reasoning.take();
    if (!calls.empty()) message["tool_calls"] = std::exchange(calls, nlohmann::ordered_json::array());
    messages.push_back(std::move(message));
  }
}

}  // namespace millrace::api
