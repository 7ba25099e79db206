#include "grammar/json_merge.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

namespace millrace::grammar {
namespace {

const Schema* find_key(const Schema& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() ? nullptr : &*found;
}

// The values of const or enum; nullopt: the schema has neither.
std::optional<std::vector<Schema>> values_of(const Schema& schema) {
  if (const Schema* one = find_key(schema, "const")) return std::vector<Schema>{*one};
  const Schema* some = find_key(schema, "enum");
  if (!some || !some->is_array()) return std::nullopt;
  return std::vector<Schema>(some->begin(), some->end());
}

std::vector<std::string> common(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  std::vector<std::string> out;
  for (const std::string& type : a) {
    const bool narrow = type == "integer" && std::find(b.begin(), b.end(), "number") != b.end();
    const bool has = std::find(b.begin(), b.end(), type) != b.end();
    if (narrow || has) out.push_back(type);
    const bool wide = type == "number" && !has && std::find(b.begin(), b.end(), "integer") != b.end();
    if (wide) out.push_back("integer");
  }
  return out;
}

std::string unescape_pointer(std::string_view part) {
  std::string out;
  for (std::size_t i = 0; i < part.size(); ++i) {
    if (part[i] == '~' && i + 1 < part.size() && (part[i + 1] == '0' || part[i + 1] == '1')) {
      out += part[++i] == '0' ? '~' : '/';
    } else if (part[i] == '%' && i + 2 < part.size() && std::isxdigit(static_cast<unsigned char>(part[i + 1])) &&
               std::isxdigit(static_cast<unsigned char>(part[i + 2]))) {
      out += static_cast<char>(std::stoi(std::string(part.substr(i + 1, 2)), nullptr, 16));
      i += 2;
    } else {
      out += part[i];
    }
  }
  return out;
}

Status cannot_merge(std::string_view keyword) {
  return error(StatusCode::kUnsupported, "two values of {} for one place cannot be joined; wanted one", keyword);
}

// Combined by taking the narrower of the two.
bool is_lower_bound(std::string_view key) {
  return key == "minimum" || key == "exclusiveMinimum" || key == "minLength" || key == "minItems" ||
         key == "minProperties";
}
bool is_upper_bound(std::string_view key) {
  return key == "maximum" || key == "exclusiveMaximum" || key == "maxLength" || key == "maxItems" ||
         key == "maxProperties";
}

// A keyword whose meaning depends on another keyword of its schema cannot be taken over into a schema that has other
// values there: which keys are additional, which items stand behind the prefix.
Status check_dependent_keywords(const Schema& a, const Schema& b) {
  const auto differ = [&](const char* key) {
    const Schema* one = find_key(a, key);
    const Schema* other = find_key(b, key);
    return one != nullptr && other != nullptr ? *one != *other : one != other;
  };
  const auto either = [&](const char* key) { return a.contains(key) || b.contains(key); };
  if (differ("patternProperties") && either("additionalProperties")) return cannot_merge("additionalProperties");
  if (differ("prefixItems") && either("items")) return cannot_merge("items");
  const auto list = [](const Schema& schema) { return schema.contains("items") && schema.at("items").is_array(); };
  if ((list(a) || list(b)) && (differ("items") || differ("additionalItems"))) return cannot_merge("items");
  return ok_status();
}

}  // namespace

bool is_annotation(std::string_view keyword) {
  constexpr std::array kNames = {"title",
                                 "description",
                                 "default",
                                 "examples",
                                 "example",
                                 "$comment",
                                 "$schema",
                                 "$id",
                                 "id",
                                 "$defs",
                                 "definitions",
                                 "deprecated",
                                 "readOnly",
                                 "writeOnly",
                                 "$anchor",
                                 "contentMediaType",
                                 "contentEncoding",
                                 "contentSchema",
                                 "$vocabulary"};
  return std::find(kNames.begin(), kNames.end(), keyword) != kNames.end() || keyword.starts_with("x-");
}

std::vector<std::string> types_of(const Schema& schema) {
  const Schema* type = schema.is_object() ? find_key(schema, "type") : nullptr;
  if (type && type->is_string()) return {type->get<std::string>()};
  if (type && type->is_array()) {
    std::vector<std::string> out;
    for (const Schema& one : *type) {
      if (one.is_string()) out.push_back(one.get<std::string>());
    }
    return out;
  }
  return {"object", "array", "string", "number", "boolean", "null"};
}

Result<const Schema*> SchemaMerger::find(std::string_view reference) const {
  if (!reference.starts_with("#")) {
    return error(StatusCode::kUnsupported, "$ref '{}' leaves the schema; wanted one that begins with '#'", reference);
  }
  const Schema* at = &root_;
  std::string_view rest = reference.substr(1);
  while (!rest.empty()) {
    if (rest[0] != '/') {
      return error(StatusCode::kUnsupported, "$ref '{}' is no JSON pointer; wanted one, such as '#/$defs/name'",
                   reference);
    }
    rest.remove_prefix(1);
    const std::string part = unescape_pointer(rest.substr(0, rest.find('/')));
    rest.remove_prefix(std::min(rest.find('/'), rest.size()));
    const bool index = at->is_array() && !part.empty() && part.size() < 6 &&
                       part.find_first_not_of("0123456789") == part.npos && std::stoul(part) < at->size();
    if (at->is_object() && at->contains(part)) {
      at = &at->at(part);
    } else if (index) {
      at = &at->at(std::stoul(part));
    } else {
      return invalid_argument("$ref '{}' names nothing in the schema; wanted a pointer to a part of it", reference);
    }
  }
  return at;
}

Result<Schema> SchemaMerger::without_reference(const Schema& schema, int depth) const {
  if (!schema.is_object()) return schema;
  const Schema* reference = find_key(schema, "$ref");
  if (!reference) return schema;
  if (!reference->is_string()) return invalid_argument("$ref is no string; wanted one");
  if (depth > kMaxMergeDepth) {
    return error(StatusCode::kUnsupported, "$ref '{}' beside other keywords refers to itself; wanted it alone",
                 reference->get<std::string>());
  }
  ASSIGN_OR_RETURN(const Schema* target, find(reference->get_ref<const std::string&>()));
  Schema siblings = schema;
  siblings.erase("$ref");
  return merge(*target, siblings, depth + 1);
}

Result<Schema> SchemaMerger::merge(const Schema& first, const Schema& second, int depth) const {
  if (depth > kMaxMergeDepth) {
    return error(StatusCode::kUnsupported, "schemas that have to be joined lie more than {} deep", kMaxMergeDepth);
  }
  ASSIGN_OR_RETURN(const Schema a, without_reference(first, depth));
  ASSIGN_OR_RETURN(const Schema b, without_reference(second, depth));
  if (a.is_boolean()) return a.get<bool>() ? b : a;
  if (b.is_boolean()) return b.get<bool>() ? a : b;
  if (!a.is_object() || !b.is_object()) return invalid_argument("a schema is no object; wanted one, or true or false");
  RETURN_IF_ERROR(check_dependent_keywords(a, b));
  const Schema *const_a = find_key(a, "const"), *const_b = find_key(b, "const");
  if (const_a && const_b && *const_a != *const_b) return Schema(false);
  Schema out = Schema::object();
  for (const auto& [key, value] : a.items()) {
    const Schema* other = find_key(b, key.c_str());
    if (!other || *other == value || is_annotation(key)) {
      out[key] = value;
    } else {
      RETURN_IF_ERROR(merge_keyword(key, value, *other, out, depth));
    }
  }
  for (const auto& [key, value] : b.items()) {
    if (!out.contains(key)) out[key] = value;
  }
  RETURN_IF_ERROR(merge_properties(a, b, out, depth));
  if (out.contains("type") && out["type"].is_array() && out["type"].empty()) return Schema(false);
  return out;
}

Status SchemaMerger::merge_keyword(const std::string& key, const Schema& value, const Schema& other, Schema& out,
                                   int depth) const {
  if (key == "properties" || key == "additionalProperties") return ok_status();  // merge_properties
  if (key == "type") {
    out[key] = common(types_of({{"type", value}}), types_of({{"type", other}}));
  } else if (key == "required" && value.is_array() && other.is_array()) {
    Schema all = value;
    for (const Schema& name : other) {
      if (std::find(all.begin(), all.end(), name) == all.end()) all.push_back(name);
    }
    out[key] = all;
  } else if (key == "enum" && value.is_array() && other.is_array()) {
    Schema both = Schema::array();
    for (const Schema& one : value) {
      if (std::find(other.begin(), other.end(), one) != other.end()) both.push_back(one);
    }
    out[key] = both;
  } else if (is_lower_bound(key) && value.is_number() && other.is_number()) {
    out[key] = value < other ? other : value;
  } else if (is_upper_bound(key) && value.is_number() && other.is_number()) {
    out[key] = other < value ? other : value;
  } else if (key == "items" && !value.is_array() && !other.is_array()) {
    ASSIGN_OR_RETURN(out[key], merge(value, other, depth + 1));
  } else if ((key == "anyOf" || key == "oneOf") && value.is_array() && other.is_array()) {
    if (value.size() * other.size() > kMaxAlternatives) return cannot_merge(key);
    Schema all = Schema::array();
    for (const Schema& x : value) {
      for (const Schema& y : other) {
        ASSIGN_OR_RETURN(Schema both, merge(x, y, depth + 1));
        all.push_back(std::move(both));
      }
    }
    out[key] = all;
  } else if (key == "allOf" && value.is_array() && other.is_array()) {
    out[key] = value;
    for (const Schema& one : other) out[key].push_back(one);
  } else {
    return cannot_merge(key);
  }
  return ok_status();
}

// A property that one side does not name is an additional one there.
Status SchemaMerger::merge_properties(const Schema& a, const Schema& b, Schema& out, int depth) const {
  static const Schema kNone = Schema::object(), kAny = true;
  const auto part = [](const Schema& of, const char* key, const Schema& otherwise) -> const Schema& {
    const Schema* found = find_key(of, key);
    return found ? *found : otherwise;
  };
  const Schema& more_a = part(a, "additionalProperties", kAny);
  const Schema& more_b = part(b, "additionalProperties", kAny);
  const Schema& named_a = part(a, "properties", kNone);
  const Schema& named_b = part(b, "properties", kNone);
  if (named_a.empty() && named_b.empty() && more_a == kAny && more_b == kAny) return ok_status();
  if (!named_a.is_object() || !named_b.is_object()) return invalid_argument("properties is no object; wanted one");
  Schema properties = Schema::object();
  for (const auto& [name, schema] : named_a.items()) {
    ASSIGN_OR_RETURN(properties[name], merge(schema, named_b.contains(name) ? named_b.at(name) : more_b, depth + 1));
  }
  for (const auto& [name, schema] : named_b.items()) {
    if (named_a.contains(name)) continue;
    ASSIGN_OR_RETURN(properties[name], merge(more_a, schema, depth + 1));
  }
  if (!properties.empty()) out["properties"] = properties;
  if (more_a != kAny || more_b != kAny) {
    ASSIGN_OR_RETURN(out["additionalProperties"], merge(more_a, more_b, depth + 1));
  }
  return ok_status();
}

bool SchemaMerger::disjoint(const Schema& first, const Schema& second) const {
  const Result<Schema> a = without_reference(first, 0), b = without_reference(second, 0);
  if (!a.ok() || !b.ok() || !a->is_object() || !b->is_object()) return false;
  if (common(types_of(*a), types_of(*b)).empty()) return true;
  const auto values_a = values_of(*a), values_b = values_of(*b);
  if (values_a && values_b) {
    return std::none_of(values_a->begin(), values_a->end(), [&](const Schema& value) {
      return std::find(values_b->begin(), values_b->end(), value) != values_b->end();
    });
  }
  if (types_of(*a) != std::vector<std::string>{"object"} || types_of(*b) != types_of(*a)) return false;
  // Two kinds of objects: one needs a property that the other forbids, or that has other values there.
  const auto apart = [this](const Schema& x, const Schema& y) {
    const Schema* required = find_key(x, "required");
    const Schema* mine = find_key(x, "properties");
    const Schema* theirs = find_key(y, "properties");
    const Schema* more = find_key(y, "additionalProperties");
    const Schema* also = find_key(y, "required");
    if (!required || !required->is_array() || (theirs && !theirs->is_object())) return false;
    return std::any_of(required->begin(), required->end(), [&](const Schema& name) {
      if (!name.is_string()) return false;
      const auto& key = name.get_ref<const std::string&>();
      const bool named = theirs && theirs->contains(key);
      if (!named) return more && *more == Schema(false) && !y.contains("patternProperties");
      const bool both_require = also && also->is_array() && std::find(also->begin(), also->end(), name) != also->end();
      return both_require && mine && mine->is_object() && mine->contains(key) &&
             disjoint(mine->at(key), theirs->at(key));
    });
  };
  return apart(*a, *b) || apart(*b, *a);
}

}  // namespace millrace::grammar
