#include "api/messages_tools.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "api/content_blocks.h"
#include "api/tool_fields.h"
#include "api/unserved_fields.h"
#include "wire/output_parsing.h"

namespace millrace::api {
namespace {

using OrderedJson = nlohmann::ordered_json;

Status check_tool(const Json& tool, const std::string& where, std::set<std::string>& names) {
  if (!tool.is_object()) return invalid_argument("{} is of type {}; wanted an object", where, json_type_name(tool));
  std::string type = "custom", name, description;
  RETURN_IF_ERROR(json_read(tool, "type", type).with_prefix(where));
  if (type != "custom") {
    return error(StatusCode::kUnsupported, "{}.type is '{}'; wanted 'custom' or nothing: no tools run on this server",
                 where, type.substr(0, kShownBytes));
  }
  RETURN_IF_ERROR(json_read(tool, "name", name).with_prefix(where));
  RETURN_IF_ERROR(check_tool_name(name, where, names));
  RETURN_IF_ERROR(json_read(tool, "description", description).with_prefix(where));
  const Json* schema = json_find(tool, "input_schema");
  if (!schema || !schema->is_object()) {
    return invalid_argument("{}.input_schema is {}; wanted an object", where,
                            schema ? fmt::format("of type {}", json_type_name(*schema)) : "missing");
  }
  static const Json kNone = Json::array(), kDirect = Json::array({"direct"}), kFalse = false;
  RETURN_IF_ERROR(refuse_unless(tool, "input_examples", kNone).with_prefix(where));
  RETURN_IF_ERROR(refuse_unless(tool, "allowed_callers", kDirect).with_prefix(where));
  return refuse_unless(tool, "defer_loading", kFalse).with_prefix(where);
}

OrderedJson chat_tool(const OrderedJson& tool) {
  OrderedJson function = {{"name", tool["name"]}};
  for (const auto& [from, to] :
       {std::pair("description", "description"), {"input_schema", "parameters"}, {"strict", "strict"}}) {
    if (const auto value = tool.find(from); value != tool.end() && !value->is_null()) function[to] = *value;
  }
  return {{"type", "function"}, {"function", std::move(function)}};
}

Status translate_choice(const Json& choice, const std::set<std::string>& names, OrderedJson& chat) {
  if (!choice.is_object()) {
    return invalid_argument("tool_choice is of type {}; wanted an object", json_type_name(choice));
  }
  std::string type, name;
  bool one_call = false;
  RETURN_IF_ERROR(json_read(choice, "type", type).with_prefix("tool_choice"));
  RETURN_IF_ERROR(json_read(choice, "disable_parallel_tool_use", one_call).with_prefix("tool_choice"));
  if (one_call) chat["parallel_tool_calls"] = false;
  if (type == "auto" || type == "none") {
    chat["tool_choice"] = type;
    return ok_status();
  }
  if (type != "any" && type != "tool") {
    return invalid_argument("tool_choice.type is '{}'; wanted auto, any, tool or none", type.substr(0, kShownBytes));
  }
  if (names.empty()) return invalid_argument("tool_choice.type is '{}' without tools; wanted tools", type);
  if (type == "any") {
    chat["tool_choice"] = "required";
    return ok_status();
  }
  RETURN_IF_ERROR(json_read(choice, "name", name).with_prefix("tool_choice"));
  if (!names.count(name)) {
    return invalid_argument("tool_choice.name is '{}'; wanted the name of one of the tools",
                            name.substr(0, kShownBytes));
  }
  chat["tool_choice"] = {{"type", "function"}, {"function", {{"name", name}}}};
  return ok_status();
}

}  // namespace

Status translate_tools(const Json& body, const OrderedJson& ordered, OrderedJson& chat) {
  std::set<std::string> names;
  if (const Json* tools = json_find(body, "tools")) {
    if (!tools->is_array()) return invalid_argument("tools is of type {}; wanted an array", json_type_name(*tools));
    if (tools->size() > wire::kMaxTools) {
      return invalid_argument("tools has {} entries; wanted at most {}", tools->size(), wire::kMaxTools);
    }
    OrderedJson& out = chat["tools"] = OrderedJson::array();
    const OrderedJson& ordered_tools = ordered["tools"];  // outside of the loop: a search of all keys
    for (std::size_t i = 0; i < tools->size(); ++i) {
      RETURN_IF_ERROR(check_tool((*tools)[i], fmt::format("tools[{}]", i), names));
      out.push_back(chat_tool(ordered_tools[i]));
    }
  }
  const Json* choice = json_find(body, "tool_choice");
  return choice ? translate_choice(*choice, names, chat) : ok_status();
}

}  // namespace millrace::api
