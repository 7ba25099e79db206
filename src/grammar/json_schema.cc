#include "grammar/json_schema.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "base/json.h"
#include "base/ordered_json.h"
#include "grammar/json_formats.h"
#include "grammar/json_index.h"
#include "grammar/json_numbers.h"
#include "grammar/json_rewrite.h"
#include "grammar/regex.h"
#include "grammar/schema_compiler.h"
#include "grammar/state_table.h"

namespace millrace::grammar {
namespace {

// What no automaton of this kind can keep, or is not written yet.
constexpr std::array kNotServed = {"minContains",           "maxContains",   "unevaluatedItems",
                                   "unevaluatedProperties", "$recursiveRef", "$dynamicRef"};

constexpr std::size_t kRuleSteps = 100;  // of a SchemaWork: with its expressions

// The keywords that speak of values of one type.
const std::vector<std::pair<const char*, std::vector<const char*>>> kTypedKeywords = {
    {"object",
     {"properties", "required", "additionalProperties", "patternProperties", "minProperties", "maxProperties",
      joined::kKeys, joined::kSome, joined::kExtra}},
    {"array", {"items", "prefixItems", "minItems", "maxItems", "uniqueItems", "additionalItems", "contains"}},
    {"string",
     {"pattern", "minLength", "maxLength", "format", joined::kPatterns, joined::kFormats, joined::kNotPatterns,
      joined::kNotValues}},
    {"number", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}}};

// What a schema without `type` speaks of.
std::vector<std::string> implied_types(const Schema& schema) {
  std::vector<std::string> out;
  for (const auto& [type, keys] : kTypedKeywords) {
    if (std::any_of(keys.begin(), keys.end(), [&](const char* key) { return schema.contains(key); }))
      out.push_back(type);
  }
  return out;
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

// A JSON reader makes a double of an integer over 64 bits.
bool is_rounded_integer(const Schema& value) {
  return value.is_number_float() && std::abs(value.get<double>()) >= 0x1p63;
}

const Schema* find_rounded_integer(const Schema& value) {
  if (is_rounded_integer(value)) return &value;
  if (!value.is_structured()) return nullptr;
  for (const Schema& one : value) {
    if (const Schema* found = find_rounded_integer(one)) return found;
  }
  return nullptr;
}

// An integer that was rounded, and is written in the fewest digits that read as this double, is by at most one double
// away; the next one allows less.
NumberBound bound_of(const Schema& value, bool exclusive, bool lower) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (!is_rounded_integer(value)) return NumberBound::of(value.dump(), exclusive);
  const double next = std::nextafter(value.get<double>(), lower ? kInfinity : -kInfinity);
  return NumberBound::of(std::isfinite(next) ? Schema(next).dump() : value.dump(), exclusive);
}

// `key` joined with its exclusive form, which is a number of its own or, in draft 4, a flag.
Result<std::optional<NumberBound>> bound(const Schema& schema, const char* key, const char* exclusive_key, bool lower,
                                         const SchemaPath& path) {
  std::optional<NumberBound> out;
  if (const auto found = schema.find(key); found != schema.end()) {
    if (!found->is_number()) return invalid_argument("{}.{} is no number; wanted one", path, key);
    out = bound_of(*found, false, lower);
  }
  const auto exclusive = schema.find(exclusive_key);
  if (exclusive == schema.end()) return out;
  if (exclusive->is_boolean()) {
    if (out) out->exclusive = exclusive->get<bool>();
    return out;
  }
  if (!exclusive->is_number()) return invalid_argument("{}.{} is no number; wanted one", path, exclusive_key);
  const NumberBound other = bound_of(*exclusive, true, lower);
  out = out ? narrower(*out, other, lower) : other;
  return out;
}

// Whether a schema has parts that may be large, or refer to itself.
bool has_parts(const Schema& schema) {
  constexpr std::array kSimple = {
      "type",      "enum",    "const",   "pattern",          "format",           "minLength",
      "maxLength", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
      "$ref"};
  if (!schema.is_object()) return false;
  for (const auto& [key, value] : schema.items()) {
    const bool simple = std::find(kSimple.begin(), kSimple.end(), key) != kSimple.end() || is_annotation(key);
    if (!simple && value.is_structured()) return true;
  }
  if (schema.contains("$ref")) return schema.size() > 1;
  return schema.contains("format") || schema.contains("pattern") || schema.contains("enum");  // maybe large
}

bool has_joined_keyword(const Schema& schema) {
  constexpr std::array kAll = {joined::kEach,      joined::kPatterns, joined::kNotPatterns, joined::kFormats,
                               joined::kNotValues, joined::kKeys,     joined::kSome,        joined::kExtra};
  if (!schema.is_structured()) return false;
  if (schema.is_object() &&
      std::any_of(kAll.begin(), kAll.end(), [&](const char* key) { return schema.contains(key); })) {
    return true;
  }
  return std::any_of(schema.begin(), schema.end(), has_joined_keyword);
}

// What makes two schemas the same.
std::string constraints_of(const Schema& schema) {
  Schema out = Schema::object();
  for (const auto& [key, value] : schema.items()) {
    if (!is_annotation(key)) out[key] = value;
  }
  return out.dump();
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
  return std::optional(static_cast<int>(std::min(value, kFarthestCount)));
}

Result<Rules> SchemaCompiler::compile(const Schema& schema, int depth) {
  const int first = json_.add_rule("the schema");
  ASSIGN_OR_RETURN(ExprPtr body, any(schema, "schema", depth));
  json_.set_rule(first, std::move(body));
  // What is referred to becomes rules one by one, so that a chain of references is no chain of calls here.
  while (!referred_.empty()) {
    const std::string pointer = std::move(referred_.back());
    referred_.pop_back();
    ASSIGN_OR_RETURN(const Schema* target, merger_.find(pointer));
    ASSIGN_OR_RETURN(ExprPtr target_body, any(*target, pointer, depth));
    json_.set_rule(references_.at(pointer), std::move(target_body));
  }
  return std::move(rules_);
}

// Joined schemas are made again and again, by alternatives and along references: equal ones are one rule, which also
// ends a recursion.
Result<ExprPtr> SchemaCompiler::shared(const Schema& schema, const SchemaPath& path, int depth) {
  if (!has_parts(schema)) {
    ASSIGN_OR_RETURN(ExprPtr body, any(schema, path, depth));
    if (body->kind != Expr::Kind::kSeq && body->kind != Expr::Kind::kAlt) return body;
    const int number = json_.add_rule(path);
    json_.set_rule(number, std::move(body));
    return rule(number);
  }
  const auto [known, added] = shared_.try_emplace(constraints_of(schema), nullptr);
  ExprPtr& here = known->second;  // stays where it is while others are added
  if (!added) return here;
  const int number = json_.add_rule(path);
  here = rule(number);
  ASSIGN_OR_RETURN(ExprPtr body, any(schema, path, depth));
  if (body->kind == Expr::Kind::kNever || body->kind == Expr::Kind::kRule) here = body;
  json_.set_rule(number, body);
  return here;
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
  // Every few rules end here: a schema's properties, items and alternatives are schemas too.
  RETURN_IF_ERROR(work_.spend((rules_.bodies.size() - std::exchange(paid_rules_, rules_.bodies.size())) * kRuleSteps));
  for (const char* keyword : kNotServed) {
    if (schema.contains(keyword)) return not_served(path, keyword, "a keyword of docs/structured-output.md");
  }
  if (const auto found = schema.find("$ref"); found != schema.end()) {
    if (!found->is_string()) return invalid_argument("{}.$ref is no string; wanted one", path);
    if (constrains_nothing(without(schema, {"$ref"}))) return reference(found->get<std::string>());
    Result<Schema> merged = merger_.without_reference(schema, 0);
    if (!merged.ok()) return merged.status().with_prefix(path);
    return any(*merged, path, depth + 1);
  }
  ASSIGN_OR_RETURN(const Schema* all, array_member(schema, "allOf", path));
  if (all) {
    Schema merged = without(schema, {"allOf"});
    if (constrains_nothing(merged)) merged = true;
    const Result<Schema> joined_all = merger_.merge_all(std::move(merged), all->get_ref<const Schema::array_t&>());
    if (!joined_all.ok()) return joined_all.status().with_prefix(path + ".allOf");
    return any(*joined_all, path, depth + 1);
  }
  Result<Schema> plain = rewritten(merger_, schema, 0);
  if (!plain.ok()) return plain.status().with_prefix(path);
  if (*plain != schema) return any(*plain, path, depth + 1);
  for (const char* keyword : {"anyOf", "oneOf", joined::kEach}) {
    if (schema.contains(keyword)) return alternatives(schema, keyword, path, depth);
  }
  if (schema.contains("enum") || schema.contains("const")) return values(schema, path, depth);
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
  Schema siblings = without(schema, {keyword});
  Schema of = *listed;
  const bool each = keyword == joined::kEach;
  if (each) {
    of = listed->back();
    if (listed->size() > 1) siblings[joined::kEach] = Schema(listed->begin(), listed->end() - 1);
  }
  if (!of.is_array()) return invalid_argument("{}.{} is no array; wanted one", path, keyword);
  if (constrains_nothing(siblings)) siblings = true;
  std::vector<Schema> all;
  if (keyword == std::string_view("oneOf")) {
    Result<Schema> apart = exclusive(merger_, of, siblings, 0);
    if (!apart.ok()) return apart.status().with_prefix(fmt::format("{}.oneOf", path));
    all.assign(apart->begin(), apart->end());
  } else {
    for (const Schema& one : of) {
      Result<Schema> merged = merger_.merge(siblings, one);
      if (!merged.ok()) return merged.status().with_prefix(fmt::format("{}.{}", path, each ? "anyOf" : keyword));
      if (each && *merged == siblings) return any(siblings, path, depth + 1);  // it adds nothing
      all.push_back(std::move(*merged));
    }
  }
  std::vector<ExprPtr> parts;
  ValueSet known;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i] == Schema(false) || !known.insert(all[i])) continue;
    ASSIGN_OR_RETURN(ExprPtr part,
                     shared(all[i], fmt::format("{}.{}[{}]", path, each ? "anyOf" : keyword, i), depth + 1));
    parts.push_back(std::move(part));
  }
  return alt(std::move(parts));
}

// const and enum: those of the values that the other keywords accept, by a grammar of those.
Result<ExprPtr> SchemaCompiler::values(const Schema& schema, const SchemaPath& path, int depth) {
  ASSIGN_OR_RETURN(const Schema* listed, array_member(schema, "enum", path));
  const auto one = schema.find("const");
  std::vector<Schema> wanted;
  if (listed) wanted.assign(listed->begin(), listed->end());
  if (one != schema.end()) {
    const bool also_listed = !listed || std::find(wanted.begin(), wanted.end(), *one) != wanted.end();
    wanted.assign(also_listed ? 1 : 0, *one);
  }
  Schema rest = without(schema, {"enum", "const"});
  if (rest.contains("type")) {
    const std::vector<std::string> types = types_of(rest);
    std::erase_if(wanted, [&](const Schema& value) {
      return std::none_of(types.begin(), types.end(), [&](const std::string& type) { return has_type(value, type); });
    });
  }
  // Keywords for other types constrain none of these.
  for (const auto& [type_of, keys] : kTypedKeywords) {
    const char* type = type_of;
    const bool has =
        std::any_of(wanted.begin(), wanted.end(), [&](const Schema& value) { return has_type(value, type); });
    for (const char* key : keys) {
      if (!has) rest.erase(key);
    }
  }
  if (!wanted.empty() && !constrains_nothing(without(rest, {"type"}))) {
    ASSIGN_OR_RETURN(const Rules rules, SchemaCompiler(root_, work_).compile(rest, depth + 1));
    const Result<std::shared_ptr<const Grammar>> grammar = Grammar::compile(rules);
    std::optional<StateTable> states;
    if (grammar.ok()) states.emplace(*grammar);
    std::erase_if(wanted, [&](const Schema& value) {
      return !states || !states->can_end(states->step(states->start(), value.dump()));
    });
  }
  std::vector<ExprPtr> parts;
  parts.reserve(wanted.size());
  for (const Schema& value : wanted) {
    if (const Schema* rounded = find_rounded_integer(value)) {
      return invalid_argument("{}.{} has {}; wanted an integer of at most 64 bits", path, listed ? "enum" : "const",
                              rounded->dump());
    }
    parts.push_back(literal(value, json_));
  }
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

// The patterns and formats that a string has to match, and the patterns that it must not match.
Result<SchemaCompiler::StringRules> SchemaCompiler::string_rules(const Schema& schema, const SchemaPath& path) {
  StringRules out;
  for (const char* key : {"pattern", joined::kPatterns, "format", joined::kFormats, joined::kNotPatterns}) {
    const auto found = schema.find(key);
    if (found == schema.end()) continue;
    const bool format = key == std::string_view("format") || key == joined::kFormats;
    for (const Schema& one : found->is_array() ? *found : Schema::array({*found})) {
      if (!one.is_string()) return invalid_argument("{}.{} is no string; wanted one", path, key);
      const auto& value = one.get_ref<const std::string&>();
      if (format && !format_pattern(value)) {
        if (!is_standard_format(value)) continue;  // an annotation
        return not_served(path, fmt::format("format '{}'", value), "another format, or a pattern");
      }
      (key == joined::kNotPatterns ? out.refused : out.wanted)
          .push_back(format ? std::string(*format_pattern(value)) : value);
    }
  }
  if (const auto found = schema.find(joined::kNotValues); found != schema.end()) {
    for (const Schema& one : *found) out.not_values.push_back(one.get<std::string>());
  }
  return out;
}

Result<ExprPtr> SchemaCompiler::string(const Schema& schema, const SchemaPath& path) {
  ASSIGN_OR_RETURN(const std::optional<int> min_length, count_member(schema, "minLength", path));
  ASSIGN_OR_RETURN(const std::optional<int> max_length, count_member(schema, "maxLength", path));
  const Count length{min_length.value_or(0), max_length.value_or(kUnbounded)};
  if (max_length && length.most < length.least) return never();
  const bool counted = length.least > 0 || max_length;
  ASSIGN_OR_RETURN(const StringRules rules, string_rules(schema, path));
  if (rules.refused.empty() && rules.not_values.empty() && rules.wanted.empty()) {
    return json_.string(length.least, length.most);
  }
  if (rules.refused.empty() && rules.wanted.empty() && !counted) return other_key(rules.not_values, path);
  if (rules.refused.empty() && rules.not_values.empty() && rules.wanted.size() == 1) {
    ASSIGN_OR_RETURN(ExprPtr content, content_of(rules.wanted[0], path, counted));
    ExprPtr body = seq({text("\""), std::move(content), text("\"")});
    if (!counted) return body;
    const int number = json_.add_rule(path);
    json_.set_rule(number, std::move(body));
    rules_.counts[number] = length;
    return rule(number);
  }
  // Several at once: by their automata.
  std::optional<Language> all;
  const auto restrict = [&](Result<Language> next, bool wanted) -> Status {
    if (!next.ok()) return next.status().with_prefix(path);
    if (!all) {
      ASSIGN_OR_RETURN(all, Language::of(any_content(), work_));
    }
    Result<Language> both = wanted ? Language::both(*all, *next, work_) : Language::minus(*all, *next, work_);
    if (!both.ok()) return both.status().with_prefix(path);
    all = std::move(*both);
    return ok_status();
  };
  for (const std::string& pattern : rules.wanted) {
    ASSIGN_OR_RETURN(const ExprPtr content, content_of(pattern, path, false));
    RETURN_IF_ERROR(restrict(Language::of(content, work_), true));
  }
  for (const std::string& pattern : rules.refused) {
    ASSIGN_OR_RETURN(const ExprPtr content, content_of(pattern, path, false));
    RETURN_IF_ERROR(restrict(Language::of(content, work_), false));
  }
  if (!rules.not_values.empty()) {
    std::vector<ExprPtr> spelled;
    for (const std::string& value : rules.not_values) spelled.push_back(JsonText::unquoted(value));
    RETURN_IF_ERROR(restrict(Language::of(alt(std::move(spelled)), work_), false));
  }
  if (counted) {
    RETURN_IF_ERROR(
        restrict(Language::of(repeat(JsonText::written(CharSet::any()), length.least, length.most), work_), true));
  }
  return seq({text("\""), all->to_expr(rules_, path), text("\"")});
}

ExprPtr SchemaCompiler::any_content() { return repeat(JsonText::written(CharSet::any()), 0, kUnbounded); }

Result<ExprPtr> SchemaCompiler::content_of(std::string_view pattern, const SchemaPath& path, bool counted) {
  const auto write = [](const CharSet& set) { return JsonText::written(set); };
  const auto count = [](const CharSet& set) { return seq({tick(), JsonText::written(set)}); };
  Result<ExprPtr> content =
      counted ? parse_regex(pattern, RegexMatch::kAnywhere, count) : parse_regex(pattern, RegexMatch::kAnywhere, write);
  if (!content.ok()) return content.status().with_prefix(path);
  return content;
}

Result<ExprPtr> SchemaCompiler::number(const Schema& schema, bool integer, const SchemaPath& path) {
  ASSIGN_OR_RETURN(const auto least, bound(schema, "minimum", "exclusiveMinimum", true, path));
  ASSIGN_OR_RETURN(const auto most, bound(schema, "maximum", "exclusiveMaximum", false, path));
  const auto between = [&]() -> ExprPtr {
    return integer ? integers_between(least, most) : numbers_between(least, most);
  };
  if (const auto step = schema.find("multipleOf"); step != schema.end()) {
    if (!step->is_number() || step->get<double>() <= 0)
      return invalid_argument("{}.multipleOf is no number above 0", path);
    if (step->get<double>() != 1) {
      Result<Language> multiples = multiples_of(NumberBound::of(step->dump(), false), integer);
      if (multiples.ok() && (least || most)) {
        const Result<Language> range = Language::of(between(), work_);
        multiples = range.ok() ? Language::both(*multiples, *range, work_) : Result<Language>(range.status());
      }
      if (!multiples.ok()) return multiples.status().with_prefix(path);
      return multiples->to_expr(rules_, path);
    }
    integer = true;
  }
  if (least || most) return between();
  return integer ? json_.integer() : json_.number();
}

Result<Rules> parse_json_schema(std::string_view schema) {
  SchemaWork work;
  return parse_json_schema(schema, work);
}

Result<Rules> parse_json_schema(std::string_view schema, SchemaWork& work) {
  if (schema.size() > kMaxSourceBytes) {
    return error(StatusCode::kTooLarge, "the schema has {} bytes; wanted at most {}", schema.size(), kMaxSourceBytes);
  }
  const Result<Json> checked = parse_json(schema, kMaxSchemaNesting);
  if (!checked.ok()) return checked.status().with_prefix("the schema");
  const Schema root = parse_ordered_json(schema);
  if (has_joined_keyword(root)) {
    return invalid_argument(
        "the schema has a key that begins with U+0001 and is a keyword of this server's; wanted "
        "another");
  }
  return SchemaCompiler(root, work).compile(root);
}

}  // namespace millrace::grammar
