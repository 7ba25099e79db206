#include "grammar/json_rewrite.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "grammar/json_formats.h"

namespace millrace::grammar {
namespace {

Status too_deep() {
  return error(StatusCode::kUnsupported, "a negated schema lies more than {} deep; wanted a simpler one",
               kMaxMergeDepth);
}

// The alternatives of a negation as they are found.
class Negation {
 public:
  Negation(const SchemaMerger& merger, const Schema& schema, int depth)
      : merger_(merger), schema_(schema), depth_(depth) {}

  Result<Schema> run() {
    for (const auto& [key, value] : schema_.items()) RETURN_IF_ERROR(keyword(key, value));
    if (alternatives_.empty() && !missing_.empty()) {
      return error(StatusCode::kUnsupported, "not with {} is not served; wanted a keyword of docs/structured-output.md",
                   missing_);
    }
    if (alternatives_.empty()) return Schema(false);
    if (alternatives_.size() == 1) return alternatives_[0];
    return Schema{{"anyOf", alternatives_}};
  }

 private:
  void add(Schema alternative) {
    if (alternative != Schema(false)) alternatives_.push_back(std::move(alternative));
  }
  void add_bound(const char* type, const char* key, const Schema& value) { add({{"type", type}, {key, value}}); }

  Status keyword(const std::string& key, const Schema& value) {
    if (key == "type") return type();
    if (key == "enum" && value.is_array()) return values(value), ok_status();
    if (key == "const") return values(Schema::array({value})), ok_status();
    if (key == "required" && value.is_array()) {
      for (const Schema& name : value) {
        if (name.is_string()) add({{"type", "object"}, {"properties", {{name.get<std::string>(), false}}}});
      }
      return ok_status();
    }
    if (key == "properties" && value.is_object()) return properties(value);
    if (key == "anyOf" || key == "allOf" || key == "oneOf" || key == joined::kEach) return combination(key, value);
    if (key == "not") return add(value), ok_status();
    if (key == "pattern") return add({{"type", "string"}, {joined::kNotPatterns, Schema::array({value})}}), ok_status();
    if (key == "items" || key == "contains") return items(key, value);
    if (bound(key, value)) return ok_status();
    if (some_key(key, value)) return ok_status();
    const bool served =
        key == "format" && value.is_string() && !is_standard_format(value.get_ref<const std::string&>());
    const bool no_more = key == "additionalProperties" && (value == Schema(true) || value == Schema::object());
    const bool never_false = key == "uniqueItems" && value == Schema(false);
    if (!served && !no_more && !never_false && constrains(key)) missing_ = key;
    return ok_status();
  }

  static bool constrains(std::string_view key) {
    constexpr std::string_view kNames[] = {
        joined::kSome,    joined::kExtra,    "prefixItems",      "additionalItems",       "format",
        "multipleOf",     "uniqueItems",     "unevaluatedItems", "unevaluatedProperties", "minContains",
        "maxContains",    "$dynamicRef",     "$recursiveRef",    joined::kPatterns,       joined::kNotPatterns,
        joined::kFormats, joined::kNotValues};
    return std::find(std::begin(kNames), std::end(kNames), key) != std::end(kNames);
  }

  Status type() {
    const std::vector<std::string> allowed = types_of(schema_);
    const auto allows = [&](const char* one) {
      return std::find(allowed.begin(), allowed.end(), one) != allowed.end();
    };
    Schema others = Schema::array();
    for (const char* one : {"object", "array", "string", "boolean", "null"}) {
      if (!allows(one)) others.push_back(one);
    }
    if (!allows("number") && !allows("integer")) others.push_back("number");
    if (!allows("number") && allows("integer")) missing_ = "type integer";
    if (!others.empty()) add({{"type", others}});
    return ok_status();
  }

  // By type: the values that are none of the listed.
  void values(const Schema& listed) {
    const auto has = [&](auto is) { return std::any_of(listed.begin(), listed.end(), is); };
    Schema texts = Schema::array();
    std::vector<Schema> numbers;
    for (const Schema& one : listed) {
      if (one.is_string()) texts.push_back(one);
      if (one.is_number()) numbers.push_back(one);
    }
    add(texts.empty() ? Schema{{"type", "string"}} : Schema{{"type", "string"}, {joined::kNotValues, texts}});
    std::sort(numbers.begin(), numbers.end());
    for (std::size_t i = 0; i <= numbers.size(); ++i) {
      Schema range{{"type", "number"}};
      if (i > 0) range["exclusiveMinimum"] = numbers[i - 1];
      if (i < numbers.size()) range["exclusiveMaximum"] = numbers[i];
      add(std::move(range));
    }
    if (!has([](const Schema& one) { return one.is_null(); })) add({{"type", "null"}});
    for (const bool one : {false, true}) {
      if (!has([&](const Schema& value) { return value == Schema(one); })) add({{"const", one}});
    }
    for (const char* structured : {"object", "array"}) {
      const bool object = structured == std::string_view("object");
      if (!has([&](const Schema& one) { return object ? one.is_object() : one.is_array(); }))
        add({{"type", structured}});
    }
  }

  Status properties(const Schema& value) {
    for (const auto& [name, one] : value.items()) {
      ASSIGN_OR_RETURN(Schema other, optional_negation(one));
      if (other == Schema(false)) continue;
      add({{"type", "object"}, {"required", Schema::array({name})}, {"properties", {{name, std::move(other)}}}});
    }
    return ok_status();
  }

  // Nothing is left where the negation is not served. One of a schema with parts is left for when it is wanted, so that
  // schemas that refer to themselves come to an end.
  Result<Schema> optional_negation(const Schema& schema) {
    const bool has_parts = schema.is_object() && std::any_of(schema.begin(), schema.end(), [](const Schema& value) {
                             return value.is_object() || (value.is_array() && !value.empty() && value[0].is_object());
                           });
    if (has_parts || (schema.is_object() && schema.contains("$ref"))) return Schema{{"not", schema}};
    Result<Schema> other = negated(merger_, schema, depth_ + 1);
    if (other.ok() || other.status().code() != StatusCode::kUnsupported) return other;
    missing_ = other.status().message();
    return Schema(false);
  }

  Status combination(const std::string& key, const Schema& listed) {
    if (!listed.is_array() || listed.size() > kMaxOneOf) return too_deep();
    if (key == "allOf") {
      for (const Schema& one : listed) {
        ASSIGN_OR_RETURN(Schema other, optional_negation(one));
        add(std::move(other));
      }
      return ok_status();
    }
    if (key == joined::kEach) {
      for (const Schema& one : listed) RETURN_IF_ERROR(combination("anyOf", one));
      return ok_status();
    }
    Schema none = true;
    for (const Schema& one : listed) {
      ASSIGN_OR_RETURN(const Schema other, optional_negation(one));
      ASSIGN_OR_RETURN(none, merger_.merge(none, other, depth_ + 1));
    }
    add(std::move(none));
    for (std::size_t i = 0; key == "oneOf" && i < listed.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        if (merger_.disjoint(listed[j], listed[i])) continue;
        ASSIGN_OR_RETURN(Schema two, merger_.merge(listed[j], listed[i], depth_ + 1));
        add(std::move(two));
      }
    }
    return ok_status();
  }

  // Where every key of a kind has to have a value, some key has another one.
  bool some_key(const std::string& key, const Schema& value) {
    const auto other = [&](Schema condition) {
      if (condition["value"] == Schema(true) || condition["value"] == Schema::object()) return;
      add({{"type", "object"}, {joined::kSome, Schema::array({std::move(condition)})}});
    };
    if (key == joined::kKeys) {
      for (const Schema& condition : value) other(condition);
    } else if (key == "patternProperties" && value.is_object()) {
      for (const auto& [pattern, one] : value.items()) other({{"pattern", pattern}, {"value", one}});
    } else if (key == "additionalProperties") {
      Schema of = schema_;
      fold_additional(of);
      if (const Schema* keys = find_key(of, joined::kKeys)) other(keys->back());
    } else {
      return false;
    }
    return true;
  }

  Status items(const std::string& key, const Schema& value) {
    const bool prefixed = value.is_array() || schema_.contains("prefixItems") || schema_.contains("minContains");
    if (prefixed || schema_.contains("maxContains")) return missing_ = key, ok_status();
    ASSIGN_OR_RETURN(Schema other, optional_negation(value));
    if (key == "items" && other == Schema(false)) return ok_status();
    add({{"type", "array"}, {key == "items" ? "contains" : "items", std::move(other)}});
    return ok_status();
  }

  bool bound(const std::string& key, const Schema& value) {
    struct Opposite {
      const char *key, *type, *opposite;
      int more;  // added to the value; 0: numbers, where it becomes exclusive, or is no longer
    };
    constexpr Opposite kOpposites[] = {{"minLength", "string", "maxLength", -1},
                                       {"maxLength", "string", "minLength", 1},
                                       {"minItems", "array", "maxItems", -1},
                                       {"maxItems", "array", "minItems", 1},
                                       {"minProperties", "object", "maxProperties", -1},
                                       {"maxProperties", "object", "minProperties", 1},
                                       {"minimum", "number", "exclusiveMaximum", 0},
                                       {"maximum", "number", "exclusiveMinimum", 0},
                                       {"exclusiveMinimum", "number", "maximum", 0},
                                       {"exclusiveMaximum", "number", "minimum", 0}};
    const auto* found =
        std::find_if(std::begin(kOpposites), std::end(kOpposites), [&](const Opposite& one) { return key == one.key; });
    if (found == std::end(kOpposites)) return false;
    if (!value.is_number()) return true;  // draft 4's flags go with their bound
    if (found->more != 0) {
      const auto count = static_cast<int64_t>(std::clamp(value.get<double>(), -1.0, kFarthestCount)) + found->more;
      if (count >= 0) add_bound(found->type, found->opposite, count);
      return true;
    }
    const char* flag = key == "minimum" ? "exclusiveMinimum" : key == "maximum" ? "exclusiveMaximum" : "";
    const Schema* exclusive = find_key(schema_, flag);
    const bool open = exclusive && exclusive->is_boolean() && exclusive->get<bool>();
    const char* inclusive = key == "minimum" ? "maximum" : "minimum";
    add_bound(found->type, open ? inclusive : found->opposite, value);
    return true;
  }

  const SchemaMerger& merger_;
  const Schema& schema_;
  const int depth_;
  Schema alternatives_ = Schema::array();
  std::string missing_;  // the last keyword without a negation
};

// A value has no `name`, or it has, and satisfies the schema.
Schema dependency(const std::string& name, const Schema& wanted) {
  Schema with = wanted.is_array() ? Schema{{"required", wanted}} : wanted;
  Schema present = {{"required", Schema::array({name})}};
  return Schema::array({{{"properties", {{name, false}}}}, {{"allOf", Schema::array({present, with})}}});
}

bool is_required(const Schema& schema, const Schema& name) {
  const Schema* required = find_key(schema, "required");
  return required && required->is_array() && std::find(required->begin(), required->end(), name) != required->end();
}

}  // namespace

Result<Schema> negated(const SchemaMerger& merger, const Schema& schema, int depth) {
  if (depth > kMaxMergeDepth) return too_deep();
  if (schema.is_boolean()) return Schema(!schema.get<bool>());
  ASSIGN_OR_RETURN(const Schema resolved, merger.without_reference(schema, depth));
  if (resolved.is_boolean()) return Schema(!resolved.get<bool>());
  if (!resolved.is_object()) return invalid_argument("a schema is no object; wanted one, or true or false");
  // `not` is undone by itself, before it is rewritten.
  Schema rest = resolved;
  rest.erase("not");
  ASSIGN_OR_RETURN(Schema plain, rewritten(merger, rest, depth + 1));
  if (plain.is_boolean()) return Schema(!plain.get<bool>());
  if (const Schema* inner = find_key(resolved, "not")) plain["not"] = *inner;
  return Negation(merger, plain, depth).run();
}

Result<Schema> rewritten(const SchemaMerger& merger, const Schema& schema, int depth) {
  constexpr const char* kRewritten[] = {
      "not", "if", "then", "else", "dependencies", "dependentRequired", "dependentSchemas", "propertyNames"};
  if (!schema.is_object() || std::none_of(std::begin(kRewritten), std::end(kRewritten),
                                          [&](const char* key) { return schema.contains(key); })) {
    return schema;
  }
  if (depth > kMaxMergeDepth) return too_deep();
  Schema out = schema;
  for (const char* key : kRewritten) out.erase(key);
  const auto also = [&](Schema any_of) {
    Schema& each = out[joined::kEach];
    each.push_back(std::move(any_of));
  };
  for (const char* key : {"dependencies", "dependentRequired", "dependentSchemas"}) {
    const Schema* listed = find_key(schema, key);
    if (!listed) continue;
    if (!listed->is_object()) return invalid_argument("{} is no object; wanted one", key);
    for (const auto& [key_of, wanted] : listed->items()) {
      const std::string& name = key_of;
      const bool kept = wanted.is_array() && std::all_of(wanted.begin(), wanted.end(), [&](const Schema& one) {
                          return is_required(schema, one) || one == Schema(name);
                        });
      const bool nothing = wanted == Schema(true) || wanted == Schema::object() || kept;
      if (!nothing) also(dependency(name, wanted));
    }
  }
  if (const Schema* condition = find_key(schema, "if")) {
    const Schema* then = find_key(schema, "then");
    const Schema* otherwise = find_key(schema, "else");
    Schema first = {{"allOf", Schema::array({*condition, then ? *then : Schema(true)})}};
    if (then || otherwise) {
      ASSIGN_OR_RETURN(Schema other, negated(merger, *condition, depth + 1));
      Schema second = {{"allOf", Schema::array({std::move(other), otherwise ? *otherwise : Schema(true)})}};
      also(Schema::array({std::move(first), std::move(second)}));
    }
  }
  if (const Schema* names = find_key(schema, "propertyNames"); names && *names != Schema(true)) {
    out[joined::kKeys].push_back({{"unless", *names}, {"value", false}});
  }
  if (const Schema* inner = find_key(schema, "not")) {
    ASSIGN_OR_RETURN(const Schema other, negated(merger, *inner, depth + 1));
    return merger.merge(out, other, depth + 1);
  }
  return out;
}

Result<Schema> exclusive(const SchemaMerger& merger, const Schema& alternatives, const Schema& beside, int depth) {
  if (!alternatives.is_array()) return invalid_argument("oneOf is no array; wanted one");
  std::vector<Schema> all;
  for (const Schema& one : alternatives) {
    ASSIGN_OR_RETURN(Schema joined_one, merger.merge(beside, one, depth));
    all.push_back(std::move(joined_one));
  }
  std::vector<const Schema*> parts;
  parts.reserve(all.size());
  for (const Schema& one : all) parts.push_back(&one);
  if (merger.all_disjoint(parts)) return Schema(all);
  if (all.size() > kMaxComparedOneOf) {
    return error(StatusCode::kTooLarge,
                 "oneOf has {} schemas that are neither values nor separated by a required property; wanted at most {}",
                 all.size(), kMaxComparedOneOf);
  }
  Schema out = Schema::array();
  for (std::size_t i = 0; i < all.size(); ++i) {
    Schema one = all[i];
    for (std::size_t j = 0; j < all.size() && one != Schema(false); ++j) {
      if (j == i || merger.disjoint(all[j], all[i])) continue;
      if (all.size() > kMaxOneOf) {
        return error(StatusCode::kUnsupported, "oneOf of {} schemas that overlap is not served; wanted at most {}",
                     all.size(), kMaxOneOf);
      }
      ASSIGN_OR_RETURN(const Schema other, negated(merger, alternatives[j], depth + 1));
      ASSIGN_OR_RETURN(one, merger.merge(one, other, depth + 1));
    }
    out.push_back(std::move(one));
  }
  return out;
}

}  // namespace millrace::grammar
