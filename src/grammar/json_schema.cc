#include "grammar/json_schema.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/json.h"
#include "grammar/json_formats.h"
#include "grammar/json_numbers.h"
#include "grammar/regex.h"
#include "grammar/schema_compiler.h"
#include "grammar/state_table.h"

namespace millrace::grammar {
namespace {

// What no automaton of this kind can keep, or is not written yet.
constexpr std::array kNotServed = {"not",
                                   "if",
                                   "then",
                                   "else",
                                   "contains",
                                   "minContains",
                                   "maxContains",
                                   "propertyNames",
                                   "dependencies",
                                   "dependentRequired",
                                   "dependentSchemas",
                                   "unevaluatedItems",
                                   "unevaluatedProperties",
                                   "$recursiveRef",
                                   "$dynamicRef"};

// What a schema without `type` speaks of.
std::vector<std::string> implied_types(const Schema& schema) {
  const auto has = [&](std::initializer_list<const char*> keys) {
    return std::any_of(keys.begin(), keys.end(), [&](const char* key) { return schema.contains(key); });
  };
  std::vector<std::string> out;
  if (has({"properties", "required", "additionalProperties", "patternProperties", "minProperties", "maxProperties"})) {
    out.push_back("object");
  }
  if (has({"items", "prefixItems", "minItems", "maxItems", "uniqueItems", "additionalItems"})) out.push_back("array");
  if (has({"pattern", "minLength", "maxLength", "format"})) out.push_back("string");
  if (has({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})) out.push_back("number");
  return out;
}

bool has_type(const Schema& value, const std::string& type) {
  if (type == "string") return value.is_string();
  if (type == "number") return value.is_number();
  if (type == "integer") {
    return value.is_number_integer() ||
           (value.is_number_float() && value.get<double>() == std::floor(value.get<double>()));
  }
  if (type == "boolean") return value.is_boolean();
  if (type == "null") return value.is_null();
  if (type == "array") return value.is_array();
  return type == "object" && value.is_object();
}

// A value as this project writes it, with any white space between its tokens.
ExprPtr literal(const Schema& value, JsonText& json) {
  if (value.is_string()) return JsonText::quoted(value.get_ref<const std::string&>());
  if (!value.is_structured()) return text(value.dump());
  std::vector<ExprPtr> parts{text(value.is_object() ? "{" : "["), json.space()};
  bool first = true;
  for (const auto& [key, one] : value.items()) {
    if (!first) parts.insert(parts.end(), {text(","), json.space()});
    first = false;
    if (value.is_object()) parts.insert(parts.end(), {JsonText::quoted(key), json.space(), text(":"), json.space()});
    parts.insert(parts.end(), {literal(one, json), json.space()});
  }
  parts.push_back(text(value.is_object() ? "}" : "]"));
  return seq(std::move(parts));
}

Schema without(Schema schema, std::initializer_list<const char*> keys) {
  for (const char* key : keys) schema.erase(key);
  return schema;
}

bool constrains_nothing(const Schema& schema) {
  for (const auto& [key, value] : schema.items()) {
    if (!is_annotation(key)) return false;
  }
  return true;
}

// `limit` joined with an older exclusive one, which is a number of its own or, in draft 4, a flag.
Result<std::optional<NumberBound>> bound(const Schema& schema, const char* key, const char* exclusive_key, bool lower,
                                         const SchemaPath& path) {
  std::optional<NumberBound> out;
  if (const auto found = schema.find(key); found != schema.end()) {
    if (!found->is_number()) return invalid_argument("{}.{} is no number; wanted one", path, key);
    out = NumberBound{found->get<double>(), false};
  }
  const auto exclusive = schema.find(exclusive_key);
  if (exclusive == schema.end()) return out;
  if (exclusive->is_boolean()) {
    if (out) out->exclusive = exclusive->get<bool>();
    return out;
  }
  if (!exclusive->is_number()) return invalid_argument("{}.{} is no number; wanted one", path, exclusive_key);
  const double value = exclusive->get<double>();
  if (!out || (lower ? value >= out->value : value <= out->value)) out = NumberBound{value, true};
  return out;
}

}  // namespace

Status not_served(const SchemaPath& path, std::string_view keyword, std::string_view wanted) {
  return error(StatusCode::kUnsupported, "{}{}{} is not served; wanted {}", path, path.empty() ? "" : ".", keyword,
               wanted);
}

Result<const Schema*> array_member(const Schema& schema, const char* key, const SchemaPath& path) {
  const auto found = schema.find(key);
  if (found == schema.end()) return static_cast<const Schema*>(nullptr);
  if (!found->is_array()) return invalid_argument("{}.{} is no array; wanted one", path, key);
  return &*found;
}

Result<const Schema*> object_member(const Schema& schema, const char* key, const SchemaPath& path) {
  const auto found = schema.find(key);
  if (found == schema.end()) return static_cast<const Schema*>(nullptr);
  if (!found->is_object()) return invalid_argument("{}.{} is no object; wanted one", path, key);
  return &*found;
}

Result<std::optional<int>> count_member(const Schema& schema, const char* key, const SchemaPath& path) {
  const auto found = schema.find(key);
  if (found == schema.end()) return std::optional<int>();
  const double value = found->is_number() ? found->get<double>() : -1;
  if (value < 0 || value != std::floor(value))
    return invalid_argument("{}.{} is no count; wanted an integer >= 0", path, key);
  return std::optional(static_cast<int>(std::min(value, 1e9)));
}

Result<Rules> SchemaCompiler::compile() {
  const int first = json_.add_rule("the schema");
  ASSIGN_OR_RETURN(ExprPtr body, any(root_, "schema", 0));
  json_.set_rule(first, std::move(body));
  // What is referred to becomes rules one by one, so that a chain of references is no chain of calls here.
  while (!referred_.empty()) {
    const std::string pointer = std::move(referred_.back());
    referred_.pop_back();
    ASSIGN_OR_RETURN(const Schema* target, merger_.find(pointer));
    ASSIGN_OR_RETURN(ExprPtr target_body, any(*target, pointer, 0));
    json_.set_rule(references_.at(pointer), std::move(target_body));
  }
  return std::move(rules_);
}

Result<ExprPtr> SchemaCompiler::shared(const Schema& schema, const SchemaPath& path, int depth) {
  ASSIGN_OR_RETURN(ExprPtr body, any(schema, path, depth));
  if (body->kind != Expr::Kind::kSeq && body->kind != Expr::Kind::kAlt) return body;
  const int number = json_.add_rule(path);
  json_.set_rule(number, std::move(body));
  return rule(number);
}

Result<ExprPtr> SchemaCompiler::reference(const std::string& pointer) {
  RETURN_IF_ERROR(merger_.find(pointer).status());
  const auto [known, added] = references_.try_emplace(pointer, 0);
  if (added) {
    known->second = json_.add_rule(pointer);
    referred_.push_back(pointer);
  }
  return rule(known->second);
}

Result<ExprPtr> SchemaCompiler::any(const Schema& schema, const SchemaPath& path, int depth) {
  if (depth > kMaxNesting) return error(StatusCode::kTooLarge, "{} lies more than {} schemas deep", path, kMaxNesting);
  if (schema.is_boolean()) return schema.get<bool>() ? json_.value() : never();
  if (!schema.is_object()) return invalid_argument("{} is no schema; wanted an object, true or false", path);
  for (const char* keyword : kNotServed) {
    if (schema.contains(keyword)) return not_served(path, keyword, "a keyword of docs/structured-output.md");
  }
  if (const auto found = schema.find("$ref"); found != schema.end()) {
    if (!found->is_string()) return invalid_argument("{}.$ref is no string; wanted one", path);
    if (constrains_nothing(without(schema, {"$ref"}))) return reference(found->get<std::string>());
    Result<Schema> merged = merger_.merge(schema, true);
    if (!merged.ok()) return merged.status().with_prefix(path);
    return any(*merged, path, depth + 1);
  }
  ASSIGN_OR_RETURN(const Schema* all, array_member(schema, "allOf", path));
  if (all) {
    Schema merged = without(schema, {"allOf"});
    for (const Schema& one : *all) {
      Result<Schema> next = merger_.merge(merged, one);
      if (!next.ok()) return next.status().with_prefix(path + ".allOf");
      merged = std::move(*next);
    }
    return any(merged, path, depth + 1);
  }
  if (schema.contains("anyOf")) return alternatives(schema, "anyOf", path, depth);
  if (schema.contains("oneOf")) return alternatives(schema, "oneOf", path, depth);
  if (schema.contains("enum") || schema.contains("const")) return values(schema, path);
  const std::vector<std::string> implied = implied_types(schema);
  if (!schema.contains("type") && implied.empty()) return json_.value();
  std::vector<ExprPtr> parts;
  for (const std::string& type : schema.contains("type") ? types_of(schema) : implied) {
    ASSIGN_OR_RETURN(ExprPtr part, typed(schema, type, path, depth));
    parts.push_back(std::move(part));
  }
  return alt(std::move(parts));
}

Result<ExprPtr> SchemaCompiler::alternatives(const Schema& schema, const char* keyword, const SchemaPath& path,
                                             int depth) {
  ASSIGN_OR_RETURN(const Schema* listed, array_member(schema, keyword, path));
  const Schema siblings = without(schema, {keyword});
  std::vector<Schema> all;
  for (const Schema& one : *listed) {
    Result<Schema> merged = constrains_nothing(siblings) ? Result<Schema>(one) : merger_.merge(siblings, one);
    if (!merged.ok()) return merged.status().with_prefix(fmt::format("{}.{}", path, keyword));
    all.push_back(std::move(*merged));
  }
  if (keyword == std::string_view("oneOf")) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        if (!merger_.disjoint(all[j], all[i])) {
          return not_served(path, fmt::format("oneOf with [{}] and [{}], which may accept the same value,", j, i),
                            "anyOf, or schemas that differ in their type or by a required constant");
        }
      }
    }
  }
  std::vector<ExprPtr> parts;
  for (std::size_t i = 0; i < all.size(); ++i) {
    ASSIGN_OR_RETURN(ExprPtr part, any(all[i], fmt::format("{}.{}[{}]", path, keyword, i), depth + 1));
    parts.push_back(std::move(part));
  }
  return alt(std::move(parts));
}

// const and enum: those of the values that the other keywords accept, by a grammar of those.
Result<ExprPtr> SchemaCompiler::values(const Schema& schema, const SchemaPath& path) {
  ASSIGN_OR_RETURN(const Schema* listed, array_member(schema, "enum", path));
  const auto one = schema.find("const");
  std::vector<Schema> wanted;
  if (listed) wanted.assign(listed->begin(), listed->end());
  if (one != schema.end()) {
    const bool also_listed = !listed || std::find(wanted.begin(), wanted.end(), *one) != wanted.end();
    wanted.assign(also_listed ? 1 : 0, *one);
  }
  const Schema rest = without(schema, {"enum", "const"});
  if (rest.contains("type")) {
    const std::vector<std::string> types = types_of(rest);
    std::erase_if(wanted, [&](const Schema& value) {
      return std::none_of(types.begin(), types.end(), [&](const std::string& type) { return has_type(value, type); });
    });
  }
  if (!constrains_nothing(without(rest, {"type"}))) {
    ASSIGN_OR_RETURN(const Rules rules, SchemaCompiler(rest).compile());
    const Result<std::shared_ptr<const Grammar>> grammar = Grammar::compile(rules);
    std::optional<StateTable> states;
    if (grammar.ok()) states.emplace(*grammar);
    std::erase_if(wanted, [&](const Schema& value) {
      return !states || !states->can_end(states->step(states->start(), value.dump()));
    });
  }
  std::vector<ExprPtr> parts;
  for (const Schema& value : wanted) parts.push_back(literal(value, json_));
  return alt(std::move(parts));
}

Result<ExprPtr> SchemaCompiler::typed(const Schema& schema, const std::string& type, const SchemaPath& path,
                                      int depth) {
  if (type == "object") return object(schema, path, depth);
  if (type == "array") return array(schema, path, depth);
  if (type == "string") return string(schema, path);
  if (type == "number" || type == "integer") return number(schema, type == "integer", path);
  if (type == "boolean") return alt({text("true"), text("false")});
  if (type == "null") return text("null");
  return invalid_argument("{}.type is '{}'; wanted object, array, string, number, integer, boolean or null", path,
                          type);
}

Result<ExprPtr> SchemaCompiler::string(const Schema& schema, const SchemaPath& path) {
  ASSIGN_OR_RETURN(const std::optional<int> least, count_member(schema, "minLength", path));
  ASSIGN_OR_RETURN(const std::optional<int> most, count_member(schema, "maxLength", path));
  if (most && *most < least.value_or(0)) return never();
  std::vector<ExprPtr> contents;  // each with what it alone allows between the quotation marks
  for (const char* key : {"pattern", "format"}) {
    const auto found = schema.find(key);
    if (found == schema.end()) continue;
    if (!found->is_string()) return invalid_argument("{}.{} is no string; wanted one", path, key);
    const std::string_view value = found->get_ref<const std::string&>();
    const bool format = key == std::string_view("format");
    if (format && !format_pattern(value)) {
      if (!is_standard_format(value)) continue;  // an annotation
      return not_served(path, fmt::format("format '{}'", value), "another format, or a pattern");
    }
    ASSIGN_OR_RETURN(ExprPtr content, content_of(format ? *format_pattern(value) : value, path));
    contents.push_back(std::move(content));
  }
  if (contents.empty()) return json_.string(least.value_or(0), most.value_or(kUnbounded));
  if (most || least.value_or(0) > 0) {
    contents.push_back(repeat(JsonText::written(CharSet::any()), least.value_or(0), most.value_or(kUnbounded)));
  }
  if (contents.size() == 1) return seq({text("\""), contents[0], text("\"")});
  Result<Language> all = Language::of(contents[0]);
  for (std::size_t i = 1; all.ok() && i < contents.size(); ++i) {
    const Result<Language> next = Language::of(contents[i]);
    all = next.ok() ? Language::both(*all, *next) : Result<Language>(next.status());
  }
  if (!all.ok()) return all.status().with_prefix(path);
  return seq({text("\""), all->to_expr(rules_, path), text("\"")});
}

Result<ExprPtr> SchemaCompiler::content_of(std::string_view pattern, const SchemaPath& path) {
  const auto write = [](const CharSet& set) { return JsonText::written(set); };
  Result<ExprPtr> content = parse_regex(pattern, RegexMatch::kAnywhere, write);
  if (!content.ok()) return content.status().with_prefix(path);
  return content;
}

Result<ExprPtr> SchemaCompiler::number(const Schema& schema, bool integer, const SchemaPath& path) {
  ASSIGN_OR_RETURN(const auto least, bound(schema, "minimum", "exclusiveMinimum", true, path));
  ASSIGN_OR_RETURN(const auto most, bound(schema, "maximum", "exclusiveMaximum", false, path));
  if (const auto step = schema.find("multipleOf"); step != schema.end()) {
    if (!step->is_number() || step->get<double>() <= 0)
      return invalid_argument("{}.multipleOf is no number above 0", path);
    if (step->get<double>() != 1) return not_served(path, "multipleOf other than 1", "1, or a list of values (enum)");
    integer = true;
  }
  if (!integer) return least || most ? numbers_between(least, most) : json_.number();
  if (!least && !most) return json_.integer();
  constexpr double kFarthest = 9.2e18;
  std::optional<int64_t> first, last;
  if (least && least->value > -kFarthest) {
    if (least->value > kFarthest) return never();
    first = static_cast<int64_t>(std::ceil(least->value));
    if (least->exclusive && static_cast<double>(*first) == least->value) ++*first;
  }
  if (most && most->value < kFarthest) {
    if (most->value < -kFarthest) return never();
    last = static_cast<int64_t>(std::floor(most->value));
    if (most->exclusive && static_cast<double>(*last) == most->value) --*last;
  }
  return integers_between(first, last);
}

Result<Rules> parse_json_schema(std::string_view schema) {
  if (schema.size() > kMaxSourceBytes) {
    return error(StatusCode::kTooLarge, "the schema has {} bytes; wanted at most {}", schema.size(), kMaxSourceBytes);
  }
  const Result<Json> checked = parse_json(schema, kMaxSchemaNesting);
  if (!checked.ok()) return checked.status().with_prefix("the schema");
  const Schema root = Schema::parse(schema);
  return SchemaCompiler(root).compile();
}

}  // namespace millrace::grammar
