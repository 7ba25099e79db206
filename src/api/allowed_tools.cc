#include "api/allowed_tools.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "api/content_blocks.h"
#include "base/ordered_json.h"

namespace millrace::api {
namespace {

using OrderedJson = nlohmann::ordered_json;

// "": it has none, which is an error that the reader of the tools reports.
std::string name_of(const OrderedJson& tool) {
  if (!tool.is_object() || !tool.contains("function") || !tool["function"].is_object()) return "";
  const OrderedJson& function = tool["function"];
  return function.contains("name") && function["name"].is_string() ? function["name"].get<std::string>() : "";
}

Result<std::string> read_allowed(const Json& entry, std::string where, const char* member) {
  ASSIGN_OR_RETURN(const std::string type, read_block_type(entry, where));
  if (type != "function") {
    return error(StatusCode::kUnsupported, "{}.type is '{}'; wanted 'function'", where, type.substr(0, kShownBytes));
  }
  if (member == nullptr) return read_block_string(entry, "name", where);
  const Json* object = json_find(entry, member);
  where += fmt::format(".{}", member);
  if (!object || !object->is_object()) return invalid_argument("{} is missing; wanted an object", where);
  return read_block_string(*object, "name", where);
}

}  // namespace

Status keep_allowed_tools(const Json& allowed, const std::string& where, const char* member, OrderedJson& chat) {
  ASSIGN_OR_RETURN(const std::string mode, read_block_string(allowed, "mode", where));
  if (mode != "auto" && mode != "required") {
    return invalid_argument("{}.mode is '{}'; wanted auto or required", where, mode.substr(0, kShownBytes));
  }
  const Json* tools = json_find(allowed, "tools");
  if (!tools || !tools->is_array() || tools->empty()) {
    return invalid_argument("{}.tools is {}; wanted an array of functions", where,
                            !tools              ? "missing"
                            : tools->is_array() ? "empty"
                                                : fmt::format("of type {}", json_type_name(*tools)));
  }
  std::set<std::string> known, kept_names;
  for (const OrderedJson& tool : chat["tools"]) known.insert(name_of(tool));
  for (std::size_t i = 0; i < tools->size(); ++i) {
    const std::string entry = fmt::format("{}.tools[{}]", where, i);
    ASSIGN_OR_RETURN(std::string name, read_allowed((*tools)[i], entry, member));
    if (!known.count(name)) {
      return invalid_argument("{}{}.name is '{}'; wanted the name of one of the tools", entry,
                              member ? fmt::format(".{}", member) : "", name.substr(0, kShownBytes));
    }
    kept_names.insert(std::move(name));
  }
  OrderedJson kept = OrderedJson::array();
  for (OrderedJson& tool : chat["tools"]) {
    const std::string name = name_of(tool);
    if (name.empty() || kept_names.count(name)) kept.push_back(std::move(tool));
  }
  chat["tools"] = std::move(kept);
  chat["tool_choice"] = mode;
  return ok_status();
}

Result<std::optional<std::string>> resolve_allowed_tools(const Json& body, const std::string& text) {
  const Json* choice = json_find(body, "tool_choice");
  const Json* type = choice && choice->is_object() ? json_find(*choice, "type") : nullptr;
  if (!type || *type != "allowed_tools") return std::optional<std::string>();
  const Json* allowed = json_find(*choice, "allowed_tools");
  if (!allowed || !allowed->is_object()) {
    return invalid_argument("tool_choice.allowed_tools is missing; wanted an object with mode and tools");
  }
  OrderedJson chat = parse_ordered_json(text);
  RETURN_IF_ERROR(keep_allowed_tools(*allowed, "tool_choice.allowed_tools", "function", chat));
  return std::optional(chat.dump());
}

}  // namespace millrace::api
