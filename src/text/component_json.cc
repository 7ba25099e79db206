#include "text/component_json.h"

#include <nlohmann/json.hpp>

#include "base/utf8.h"

namespace millrace {
namespace {

Result<const Json*> required(const Json& object, std::string_view key, std::string_view wanted) {
  const Json* value = json_find(object, key);
  if (value == nullptr) return invalid_argument("{} is missing; wanted {}", key, wanted);
  return value;
}

}  // namespace

Result<std::string> component_type(const Json& component) {
  if (!component.is_object()) return invalid_argument("it is a {}; wanted an object", json_type_name(component));
  return required_string(component, "type");
}

Result<std::string> required_string(const Json& object, std::string_view key) {
  ASSIGN_OR_RETURN(const Json* value, required(object, key, "a string"));
  if (!value->is_string()) return invalid_argument("{} is a {}; wanted a string", key, json_type_name(*value));
  return value->get_ref<const std::string&>();
}

Result<bool> required_bool(const Json& object, std::string_view key) {
  ASSIGN_OR_RETURN(const Json* value, required(object, key, "a boolean"));
  if (!value->is_boolean()) return invalid_argument("{} is a {}; wanted a boolean", key, json_type_name(*value));
  return value->get<bool>();
}

Result<std::string> required_character(const Json& object, std::string_view key) {
  ASSIGN_OR_RETURN(std::string text, required_string(object, key));
  if (text.empty() || utf8_classify(text).size_bytes != text.size()) {
    return invalid_argument("{} is \"{}\"; wanted one character", key, text);
  }
  return text;
}

Result<PatternText> required_pattern(const Json& object, std::string_view key) {
  ASSIGN_OR_RETURN(const Json* value, required(object, key, "{\"String\": ...} or {\"Regex\": ...}"));
  if (value->is_object() && value->size() == 1) {
    for (const char* kind : {"String", "Regex"}) {
      if (!value->contains(kind)) continue;
      ASSIGN_OR_RETURN(std::string text, required_string(*value, kind));
      return PatternText{std::move(text), std::string_view(kind) == "Regex"};
    }
  }
  return invalid_argument("{} is a {}; wanted {{\"String\": ...}} or {{\"Regex\": ...}}", key, json_type_name(*value));
}

Result<const Json*> required_array(const Json& object, std::string_view key) {
  ASSIGN_OR_RETURN(const Json* value, required(object, key, "an array"));
  if (!value->is_array()) return invalid_argument("{} is a {}; wanted an array", key, json_type_name(*value));
  return value;
}

}  // namespace millrace
