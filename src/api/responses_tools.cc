#include "api/responses_tools.h"

#include <fmt/format.h>

#include <set>
#include <string>
#include <utility>

#include "api/allowed_tools.h"
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

// {"type": "function", "name": ...}.
Result<std::string> read_named(const Json& choice, const Names& names) {
  ASSIGN_OR_RETURN(const std::string type, read_block_type(choice, "tool_choice"));
  if (type != "function") {
    return error(StatusCode::kUnsupported, "tool_choice.type is '{}'; wanted 'function' or 'allowed_tools'",
                 type.substr(0, kShownBytes));
  }
  ASSIGN_OR_RETURN(std::string name, read_block_string(choice, "name", "tool_choice"));
  if (names.count(name)) return name;
  return invalid_argument("tool_choice.name is '{}'; wanted the name of one of the tools", name.substr(0, kShownBytes));
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
    return keep_allowed_tools(choice, "tool_choice", nullptr, chat);
  }
  ASSIGN_OR_RETURN(std::string name, read_named(choice, names));
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
