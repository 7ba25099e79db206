#include "api/tool_grammar.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "base/ordered_json.h"
#include "text/tools/tool_call.h"

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

// Its references begin at the schema's own root.
OrderedJson parameters_of(const OrderedJson& function) {
  OrderedJson parameters = {{"type", "object"}};
  if (const auto given = function.find("parameters"); given != function.end() && given->is_object()) {
    parameters = *given;
    if (!parameters.contains("type")) parameters["type"] = "object";
  }
  return parameters;
}

OrderedJson call_schema(const OrderedJson& function, const ForcedCall& forced, const std::string& pointer) {
  OrderedJson parameters = parameters_of(function);
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
  const OrderedJson ordered = parse_ordered_json(text)["tools"];
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
  OrderedJson all = {{"type", "array"}, {"minItems", 1}, {"maxItems", kMaxToolCalls}};
  all["items"] = std::move(one);
  return all.dump();
}

namespace {

OrderedJson tag(std::string begin, OrderedJson schema, std::string end) {
  return {{"begin", std::move(begin)}, {"schema", std::move(schema)}, {"end", std::move(end)}};
}

bool is_strict(const OrderedJson& function) {
  const auto strict = function.find("strict");
  return strict != function.end() && *strict == true;
}

// The schema of any object, for the calls of all tools that are not strict.
OrderedJson loose_call(const OrderedJson& names) {
  const OrderedJson any_object = {{"type", "object"}};
  return {{"type", "object"},
          {"properties", {{"name", {{"enum", names}}}, {"arguments", any_object}}},
          {"required", {"name", "arguments"}},
          {"additionalProperties", false}};
}

// Each with the pointer at which it will stand.
std::vector<OrderedJson> call_schemas(const OrderedJson& tools, const std::string& parent, bool several) {
  std::vector<OrderedJson> calls;
  OrderedJson loose = OrderedJson::array();
  for (const OrderedJson& tool : tools) {
    const OrderedJson& function = tool.at("function");
    if (!is_strict(function)) {
      loose.push_back(function["name"]);
      continue;
    }
    const std::string pointer = several ? fmt::format("{}/{}", parent, calls.size()) : parent;
    calls.push_back(call_schema(function, {"", true, "arguments"}, pointer));
  }
  if (!loose.empty()) calls.push_back(loose_call(loose));
  return calls;
}

OrderedJson qwen_tags(const OrderedJson& tools) {
  OrderedJson tags = OrderedJson::array();
  for (OrderedJson& call : call_schemas(tools, "", false)) {
    tags.push_back(tag("<tool_call>\n", std::move(call), "\n</tool_call>"));
  }
  return tags;
}

// An array of calls, which may have ids, or a call by its name alone.
OrderedJson mistral_tags(const OrderedJson& tools) {
  OrderedJson calls = OrderedJson::array();
  for (OrderedJson& call : call_schemas(tools, "/items/anyOf", true)) {
    call["properties"]["id"] = {{"type", "string"}, {"pattern", "^[a-zA-Z0-9]{9}$"}};
    calls.push_back(std::move(call));
  }
  const OrderedJson all = {
      {"type", "array"}, {"minItems", 1}, {"maxItems", kMaxToolCalls}, {"items", {{"anyOf", std::move(calls)}}}};
  OrderedJson tags = {tag("[TOOL_CALLS]", all, ""), tag("[TOOL_CALLS] ", all, "")};
  for (const OrderedJson& tool : tools) {
    const OrderedJson& function = tool.at("function");
    OrderedJson parameters = is_strict(function) ? parameters_of(function) : OrderedJson{{"type", "object"}};
    tags.push_back(
        tag(fmt::format("[TOOL_CALLS]{}[ARGS]", function["name"].get<std::string>()), std::move(parameters), ""));
  }
  return tags;
}

}  // namespace

std::string guarded_calls(const std::string& text, wire::ToolDialect dialect, const std::string* document) {
  const OrderedJson tools = parse_ordered_json(text)["tools"];
  OrderedJson source;
  if (dialect == wire::ToolDialect::kMistral) {
    source["triggers"] = OrderedJson::array({"[TOOL_CALLS]"});
    source["structures"] = mistral_tags(tools);
  } else {
    source["triggers"] = OrderedJson::array({"<tool_call>"});
    source["structures"] = qwen_tags(tools);
  }
  if (document) source["document"] = *document;
  return source.dump();
}

}  // namespace millrace::api
