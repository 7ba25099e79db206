#include "api/text_parameters.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "wire/output_parsing.h"

namespace millrace::api {
namespace {

constexpr std::size_t kMaxParameterBytes = 256;  // of a name; the value of a longer one is what it reads as
constexpr int kMaxSchemaDepth = 8;               // of references and alternatives in each other; deeper is anything

// What a value may be. Where it is not certain, anything.
struct Kinds {
  bool text = false;
  bool null = false;
  bool literal = false;  // what Python writes in another way
  bool other = false;

  void add(std::string_view type) {
    const bool is_literal = type == "boolean" || type == "object" || type == "array";
    (type == "string" ? text : type == "null" ? null : is_literal ? literal : other) = true;
  }
  void add(const Kinds& more) { text |= more.text, null |= more.null, literal |= more.literal, other |= more.other; }
};

constexpr Kinds kAnything{true, true, true, true};

Kinds kinds_of(const Json& schema, const Json& root, int depth);

Kinds kinds_of_reference(const Json& reference, const Json& root, int depth) {
  const std::string target = reference.is_string() ? reference.get<std::string>() : "";
  if (!target.starts_with("#/")) return kAnything;
  try {
    return kinds_of(root.at(Json::json_pointer(target.substr(1))), root, depth + 1);
  } catch (const Json::exception&) {  // it names nothing, or is no pointer
    return kAnything;
  }
}

// Recursion: kMaxSchemaDepth.
Kinds kinds_of(const Json& schema, const Json& root, int depth) {
  if (!schema.is_object() || depth > kMaxSchemaDepth) return kAnything;
  Kinds out;
  if (const auto value = schema.find("const"); value != schema.end()) {
    out.add(json_type_name(*value));
    return out;
  }
  if (const auto values = schema.find("enum"); values != schema.end() && values->is_array()) {
    for (const Json& value : *values) out.add(json_type_name(value));
    return out;
  }
  if (const auto type = schema.find("type"); type != schema.end()) {
    if (type->is_string()) out.add(type->get_ref<const std::string&>());
    for (const Json& one : type->is_array() ? *type : Json::array()) {
      out.add(one.is_string() ? one.get_ref<const std::string&>() : "");
    }
    return out;
  }
  if (const auto reference = schema.find("$ref"); reference != schema.end()) {
    return kinds_of_reference(*reference, root, depth);
  }
  for (const char* key : {"anyOf", "oneOf", "allOf"}) {
    const auto parts = schema.find(key);
    if (parts == schema.end() || !parts->is_array() || parts->empty()) continue;
    if (std::string_view(key) == "allOf" && parts->size() > 1) continue;
    for (const Json& part : *parts) out.add(kinds_of(part, root, depth + 1));
    return out;
  }
  return kAnything;
}

std::optional<wire::ParameterKind> parameter_kind(const Kinds& kinds) {
  using enum wire::ParameterKind;
  if (!kinds.text) return kinds.null || kinds.literal ? std::optional(kNoText) : std::nullopt;
  if (kinds.literal || kinds.other) return std::nullopt;
  return kinds.null ? kTextOrNull : kText;
}

}  // namespace

Result<std::vector<std::string>> find_text_parameters(const Json& tools) {
  std::vector<std::string> out;
  for (const Json& tool : tools) {
    const Json& function = tool.at("function");
    const Json* parameters = json_find(function, "parameters");
    const Json* properties = parameters ? json_find(*parameters, "properties") : nullptr;
    if (!properties || !properties->is_object()) continue;
    for (const auto& [key, value] : properties->items()) {
      if (key.size() > kMaxParameterBytes) continue;
      const auto kind = parameter_kind(kinds_of(value, *parameters, 0));
      if (kind) out.push_back(wire::text_parameter(function.at("name").get<std::string>(), key, *kind));
    }
  }
  if (out.size() <= wire::kMaxTextParameters) return out;
  return invalid_argument(
      "tools has {} parameters that are strings, booleans, objects, arrays or null; wanted at most {}", out.size(),
      wire::kMaxTextParameters);
}

}  // namespace millrace::api
