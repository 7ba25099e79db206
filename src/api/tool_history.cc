#include "api/tool_history.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/ordered_json.h"
#include "text/jinja/format.h"
#include "wire/output_parsing.h"

namespace millrace::api {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::size_t kShortIdBytes = 9;

bool is_short_id_byte(char byte) {
  return (byte >= '0' && byte <= '9') || (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z');
}

// The last nine letters and digits: of the ids that this server makes, 36 random bits.
std::string short_id(std::string_view id) {
  std::string out;
  for (auto at = id.rbegin(); at != id.rend() && out.size() < kShortIdBytes; ++at) {
    if (is_short_id_byte(*at)) out += *at;
  }
  out.resize(kShortIdBytes, '0');
  std::reverse(out.begin(), out.end());
  return out;
}

void shorten_id(OrderedJson& object, const char* key) {
  const auto id = object.find(key);
  if (id != object.end() && id->is_string()) *id = short_id(id->get_ref<const std::string&>());
}

// As dump(), but with floats as Python's json.dumps() writes them, which is what templates do with arguments that they
// get as objects: 1000000000000000.0, not 1e+15.
void append_json(std::string& out, const OrderedJson& value) {
  const char* separator = "";
  if (value.is_number_float()) {
    out += jinja::float_repr(value.get<double>());
  } else if (value.is_object()) {
    out += '{';
    for (const auto& [key, member] : value.items()) {
      out += std::exchange(separator, ",");
      out += OrderedJson(key).dump() + ':';
      append_json(out, member);
    }
    out += '}';
  } else if (value.is_array()) {
    out += '[';
    for (const OrderedJson& element : value) {
      out += std::exchange(separator, ",");
      append_json(out, element);
    }
    out += ']';
  } else {
    out += value.dump();
  }
}

Status rewrite_arguments(OrderedJson& function, const ToolHistoryForm& form, const std::string& where,
                         ValueCount& parsed) {
  OrderedJson& arguments = function["arguments"];
  if (arguments.is_null()) arguments = OrderedJson::object();
  if (form.arguments_as_text) {
    if (arguments.is_string()) return ok_status();
    std::string text;
    append_json(text, arguments);
    arguments = std::move(text);
    return ok_status();
  }
  if (!arguments.is_string()) return ok_status();
  const std::string text = arguments.get<std::string>();
  if (text.empty()) {
    arguments = OrderedJson::object();
    return ok_status();
  }
  parsed.add(text);
  RETURN_IF_ERROR(parsed.check(fmt::format("{}.function.arguments, with those before it,", where)));
  if (const auto checked = parse_json(text); checked.ok() && checked->is_object()) {
    arguments = parse_ordered_json(text);
  }
  return ok_status();
}

Status rewrite_call(OrderedJson& call, const std::string& where, const ToolHistoryForm& form, ValueCount& parsed) {
  if (!call.is_object()) return invalid_argument("{} is of type {}; wanted an object", where, call.type_name());
  const auto function = call.find("function");
  if (function == call.end() || !function->is_object()) {
    return invalid_argument("{}.function is missing; wanted an object with name and arguments", where);
  }
  const auto name = function->find("name");
  if (name == function->end() || !name->is_string()) {
    return invalid_argument("{}.function.name is missing; wanted a string", where);
  }
  RETURN_IF_ERROR(rewrite_arguments(*function, form, where, parsed));
  if (form.short_ids) shorten_id(call, "id");
  return ok_status();
}

}  // namespace

bool has_tool_history(const Json& messages) {
  return std::any_of(messages.begin(), messages.end(), [](const Json& message) {
    return message.contains("tool_calls") || message.contains("tool_call_id");
  });
}

Status rewrite_tool_history(OrderedJson& message, const std::string& where, const ToolHistoryForm& form,
                            ValueCount& parsed) {
  if (form.short_ids) shorten_id(message, "tool_call_id");
  const auto calls = message.find("tool_calls");
  if (calls == message.end()) return ok_status();
  if (calls->is_null() || (calls->is_array() && calls->empty())) {
    message.erase("tool_calls");
    return ok_status();
  }
  if (!calls->is_array()) {
    return invalid_argument("{}.tool_calls is of type {}; wanted an array", where, calls->type_name());
  }
  if (calls->size() > wire::kMaxTools) {
    return invalid_argument("{}.tool_calls has {} entries; wanted at most {}", where, calls->size(), wire::kMaxTools);
  }
  for (std::size_t i = 0; i < calls->size(); ++i) {
    RETURN_IF_ERROR(rewrite_call((*calls)[i], fmt::format("{}.tool_calls[{}]", where, i), form, parsed));
  }
  if (form.null_content && message["content"] == "") message["content"] = nullptr;
  return ok_status();
}

}  // namespace millrace::api
