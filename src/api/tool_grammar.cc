#include "api/tool_grammar.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string_view>

namespace millrace::api {
namespace {

using OrderedJson = nlohmann::ordered_json;

// References into the document, "#/$defs/x", get the pointer at which it stands now.
void move_references(OrderedJson& schema, const std::string& pointer) {
  for (auto it = schema.begin(); schema.is_structured() && it != schema.end(); ++it) {
    if (schema.is_object() && it.key() == "$ref" && it->is_string()) {
      const auto& reference = it->get_ref<const std::string&>();
      if (reference == "#" || reference.starts_with("#/")) *it = "#" + pointer + reference.substr(1);
    } else {
      move_references(*it, pointer);
    }
  }
}

OrderedJson call_schema(const OrderedJson& function, const ForcedCall& forced, const std::string& pointer) {
  OrderedJson parameters = {{"type", "object"}};
  if (const auto given = function.find("parameters"); given != function.end() && given->is_object()) {
    parameters = *given;
    if (!parameters.contains("type")) parameters["type"] = "object";
  }
  move_references(parameters, pointer + "/properties/" + forced.member);
  OrderedJson schema = {{"type", "object"}};
  schema["properties"] = OrderedJson::object();
  schema["properties"]["name"] = {{"const", function["name"]}};
  schema["properties"][forced.member] = std::move(parameters);
  schema["required"] = OrderedJson::array({"name", forced.member});
  schema["additionalProperties"] = false;
  return schema;
}

}  // namespace

std::string forced_call_schema(const Json& tools, const std::string& text, const ForcedCall& forced) {
  const OrderedJson ordered = OrderedJson::parse(text)["tools"];
  const std::string root = forced.single ? "" : "/items";
  OrderedJson calls = OrderedJson::array();
  const bool several = forced.name.empty() && tools.size() > 1;
  for (const OrderedJson& tool : ordered) {
    const OrderedJson& function = tool.at("function");
    if (!forced.name.empty() && function["name"] != forced.name) continue;
    calls.push_back(call_schema(function, forced, several ? fmt::format("{}/anyOf/{}", root, calls.size()) : root));
  }
  OrderedJson one = calls.front();
  if (several) one = OrderedJson{{"anyOf", std::move(calls)}};
  if (forced.single) return one.dump();
  OrderedJson all = {{"type", "array"}, {"minItems", 1}};
  all["items"] = std::move(one);
  return all.dump();
}

}  // namespace millrace::api
