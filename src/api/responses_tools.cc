#include "api/responses_tools.h"

#include <fmt/format.h>

#include <set>
#include <string>
#include <utility>

#include "api/content_blocks.h"
#include "api/tool_fields.h"
#include "api/translated_chat.h"
#include "api/unserved_fields.h"
#include "wire/output_parsing.h"

namespace millrace::api {
namespace {

using OrderedJson = nlohmann::ordered_json;
using Names = std::set<std::string>;

Status check_function(const Json& tool, const std::string& where, Names& names) {
  ASSIGN_OR_RETURN(const std::string type, read_block_type(tool, where));
  if (type != "function") {
    return error(StatusCode::kUnsupported, "{}.type is '{}'; wanted 'function': no tools run on this server", where,
                 type.substr(0, kShownBytes));
  }
  std::string name, description;
  bool strict = false;
  RETURN_IF_ERROR(json_read(tool, "name", name).with_prefix(where));
  RETURN_IF_ERROR(check_tool_name(name, where, names));
  RETURN_IF_ERROR(json_read(tool, "description", description).with_prefix(where));
  RETURN_IF_ERROR(json_read(tool, "strict", strict).with_prefix(where));
  const Json* parameters = json_find(tool, "parameters");
  if (parameters && !parameters->is_object()) return wrong_type(where + ".parameters", *parameters, "an object");
  static const Json kDirect = Json::array({"direct"}), kFalse = false;
  RETURN_IF_ERROR(refuse_unless(tool, "allowed_callers", kDirect).with_prefix(where));
  RETURN_IF_ERROR(refuse_unless(tool, "defer_loading", kFalse).with_prefix(where));
  return refuse_unless(tool, "async", kFalse).with_prefix(where);
}

OrderedJson chat_function(const OrderedJson& tool) {
  OrderedJson function = {{"name", tool["name"]}};
  for (const char* key : {"description", "parameters", "strict"}) {
    if (const auto value = tool.find(key); value != tool.end() && !value->is_null()) function[key] = *value;
  }
  return {{"type", "function"}, {"function", std::move(function)}};
}

// {"type": "function", "name": ...}, in tool_choice and in its list of allowed ones.
Result<std::string> read_named(const Json& named, const std::string& where, const Names& names) {
  ASSIGN_OR_RETURN(const std::string type, read_block_type(named, where));
  if (type != "function") {
    return error(StatusCode::kUnsupported, "{}.type is '{}'; wanted 'function'{}", where, type.substr(0, kShownBytes),
                 where == "tool_choice" ? " or 'allowed_tools'" : "");
  }
  ASSIGN_OR_RETURN(std::string name, read_block_string(named, "name", where));
  if (names.count(name)) return name;
  return invalid_argument("{}.name is '{}'; wanted the name of one of the tools", where, name.substr(0, kShownBytes));
}

Status translate_allowed(const Json& choice, const Names& names, OrderedJson& chat) {
  ASSIGN_OR_RETURN(const std::string mode, read_block_string(choice, "mode", "tool_choice"));
  if (mode != "auto" && mode != "required") {
    return invalid_argument("tool_choice.mode is '{}'; wanted auto or required", mode.substr(0, kShownBytes));
  }
  const Json* tools = json_find(choice, "tools");
  if (!tools || !tools->is_array() || tools->empty()) {
    return invalid_argument("tool_choice.tools is {}; wanted an array of functions",
                            !tools              ? "missing"
                            : tools->is_array() ? "empty"
                                                : fmt::format("of type {}", json_type_name(*tools)));
  }
  Names allowed;
  for (std::size_t i = 0; i < tools->size(); ++i) {
    ASSIGN_OR_RETURN(std::string name, read_named((*tools)[i], fmt::format("tool_choice.tools[{}]", i), names));
    allowed.insert(std::move(name));
  }
  OrderedJson kept = OrderedJson::array();
  for (OrderedJson& tool : chat["tools"]) {
    if (allowed.count(tool["function"]["name"].get<std::string>())) kept.push_back(std::move(tool));
  }
  chat["tools"] = std::move(kept);
  chat["tool_choice"] = mode;
  return ok_status();
}

Status translate_choice(const Json& choice, const Names& names, OrderedJson& chat) {
  if (choice == "auto" || choice == "none") {
    chat["tool_choice"] = choice.get<std::string>();
    return ok_status();
  }
  if (choice == "required") {
    if (names.empty()) return invalid_argument("tool_choice is 'required' without tools; wanted tools");
    chat["tool_choice"] = "required";
    return ok_status();
  }
  if (choice.is_string()) {
    return invalid_argument("tool_choice is '{}'; wanted auto, none, required or an object",
                            choice.get<std::string>().substr(0, kShownBytes));
  }
  if (!choice.is_object()) return wrong_type("tool_choice", choice, "a string or an object");
  if (const Json* type = json_find(choice, "type"); type && *type == "allowed_tools") {
    return translate_allowed(choice, names, chat);
  }
  ASSIGN_OR_RETURN(std::string name, read_named(choice, "tool_choice", names));
  chat["tool_choice"] = {{"type", "function"}, {"function", {{"name", std::move(name)}}}};
  return ok_status();
}

}  // namespace

Status translate_response_tools(const Json& body, const OrderedJson& ordered, OrderedJson& chat) {
  Names names;
  if (const Json* tools = json_find(body, "tools")) {
    if (!tools->is_array()) return wrong_type("tools", *tools, "an array");
    if (tools->size() > wire::kMaxTools) {
      return invalid_argument("tools has {} entries; wanted at most {}", tools->size(), wire::kMaxTools);
    }
    OrderedJson& out = chat["tools"] = OrderedJson::array();
    const OrderedJson& ordered_tools = ordered["tools"];  // outside of the loop: a search of all keys
    for (std::size_t i = 0; i < tools->size(); ++i) {
      RETURN_IF_ERROR(check_function((*tools)[i], fmt::format("tools[{}]", i), names));
      out.push_back(chat_function(ordered_tools[i]));
    }
  }
  copy_field(ordered, "parallel_tool_calls", chat);
  const Json* choice = json_find(body, "tool_choice");
  return choice ? translate_choice(*choice, names, chat) : ok_status();
}

}  // namespace millrace::api
