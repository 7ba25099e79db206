#include "grammar/json_merge.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <numeric>
#include <utility>
#include <vector>

#include "grammar/json_formats.h"
#include "grammar/json_index.h"
#include "grammar/json_rewrite.h"

namespace millrace::grammar {
namespace {

// The part of the document that has this anchor, or this fragment as its $id.
const Schema* find_anchor(const Schema& at, std::string_view name) {
  if (at.is_object()) {
    for (const char* key : {"$anchor", "$id", "id"}) {
      const Schema* found = find_key(at, key);
      if (!found || !found->is_string()) continue;
      std::string_view text = found->get_ref<const std::string&>();
      if (key[1] != 'a' && !text.starts_with('#')) continue;
      if (key[1] != 'a') text.remove_prefix(1);
      if (text == name) return &at;
    }
  }
  if (!at.is_structured()) return nullptr;
  for (const Schema& one : at) {
    if (const Schema* found = find_anchor(one, name)) return found;
  }
  return nullptr;
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

// Combined by taking the narrower of the two.
bool is_lower_bound(std::string_view key) {
  return key == "minimum" || key == "exclusiveMinimum" || key == "minLength" || key == "minItems" ||
         key == "minProperties";
}
bool is_upper_bound(std::string_view key) {
  return key == "maximum" || key == "exclusiveMaximum" || key == "maxLength" || key == "maxItems" ||
         key == "maxProperties";
}

// Concatenated where both schemas have one.
bool is_list(std::string_view key) {
  return key == "allOf" || key == joined::kEach || key == joined::kPatterns || key == joined::kNotPatterns ||
         key == joined::kFormats || key == joined::kNotValues || key == joined::kSome;
}

// Merged together, since the meaning of each depends on the others.
bool is_of_properties(std::string_view key) {
  return key == "properties" || key == "additionalProperties" || key == "patternProperties" || key == joined::kKeys;
}
bool is_of_items(std::string_view key) { return key == "items" || key == "prefixItems" || key == "additionalItems"; }

// What two schemas may not have different values of.
bool is_constraint(std::string_view key) {
  constexpr std::array<std::string_view, 11> kNames = {
      joined::kExtra,          "const",       "contains",      "minContains", "maxContains", "unevaluatedItems",
      "unevaluatedProperties", "$dynamicRef", "$recursiveRef", "multipleOf",  "type"};
  return std::find(kNames.begin(), kNames.end(), key) != kNames.end();
}

// Draft 4's flags as numbers.
void unfold_flags(Schema& schema) {
  for (const auto& [flag, bound] :
       {std::pair("exclusiveMinimum", "minimum"), std::pair("exclusiveMaximum", "maximum")}) {
    const Schema* found = find_key(schema, flag);
    if (!found || !found->is_boolean()) continue;
    const bool exclusive = found->get<bool>() && schema.contains(bound);
    schema.erase(flag);
    if (!exclusive) continue;
    const Schema value = schema.at(bound);
    schema.erase(bound);
    schema[flag] = value;
  }
}

const Schema& part(const Schema& of, const char* key, const Schema& otherwise) {
  const Schema* found = find_key(of, key);
  return found ? *found : otherwise;
}

// Without the values of `enum` that have none of the types; a `const` that has none becomes such an enum.
void keep_typed_values(Schema& schema) {
  if (!schema.contains("type")) return;
  const std::vector<std::string> types = types_of(schema);
  const auto untyped = [&](const Schema& value) {
    return std::none_of(types.begin(), types.end(), [&](const std::string& type) { return has_type(value, type); });
  };
  if (const Schema* one = find_key(schema, "const"); one && untyped(*one)) schema["enum"] = Schema::array();
  if (Schema* listed = schema.contains("enum") ? &schema["enum"] : nullptr; listed && listed->is_array()) {
    Schema kept = Schema::array();
    std::copy_if(listed->begin(), listed->end(), std::back_inserter(kept),
                 [&](const Schema& v) { return !untyped(v); });
    *listed = std::move(kept);
  }
}

// Whether a schema is none that anything satisfies, as far as its own keywords show it.
bool is_false(const Schema& schema) {
  const Schema* type = find_key(schema, "type");
  if (type && type->is_array() && type->empty()) return true;
  const Schema* listed = find_key(schema, "enum");
  if (listed && listed->is_array() && listed->empty()) return true;
  const Schema* properties = find_key(schema, "properties");
  const Schema* required = find_key(schema, "required");
  if (!properties || !required || !required->is_array() || !properties->is_object() || !type) return false;
  if (types_of(schema) != std::vector<std::string>{"object"}) return false;
  const KeyIndex named(*properties);
  return std::any_of(required->begin(), required->end(), [&](const Schema& name) {
    if (!name.is_string()) return false;
    const Schema* value = named.find(name.get_ref<const std::string&>());
    return value && *value == Schema(false);
  });
}

// Of a SchemaWork: both schemas are copied, and so is what they have in common.
constexpr std::size_t kValueSteps = 10, kBytesOfValue = 64;

std::size_t values_in(const Schema& schema) {
  if (schema.is_string()) return 1 + schema.get_ref<const std::string&>().size() / kBytesOfValue;
  std::size_t out = 1;
  if (!schema.is_structured()) return out;
  for (const Schema& one : schema) out += values_in(one);
  return out;
}

}  // namespace

const Schema* find_key(const Schema& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() ? nullptr : &*found;
}

Status not_joined(std::string_view keyword) {
  return error(StatusCode::kUnsupported, "two values of {} for one place cannot be joined; wanted one", keyword);
}

void fold_additional(Schema& schema) {
  const Schema* more = find_key(schema, "additionalProperties");
  if (!more || *more == Schema(true)) return;
  Schema patterns = Schema::array(), names = Schema::array();
  for (const char* key : {"patternProperties", "properties"}) {
    const Schema* listed = find_key(schema, key);
    if (!listed) continue;
    for (const auto& [name, value] : listed->items()) (key[1] == 'a' ? patterns : names).push_back(name);
  }
  Schema condition{{"patterns", patterns}, {"names", names}, {"value", *more}};
  schema[joined::kKeys].push_back(std::move(condition));
  schema.erase("additionalProperties");
}

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
  for (const char* key : {"$id", "id"}) {
    const Schema* name = root_.is_object() ? find_key(root_, key) : nullptr;
    if (!name || !name->is_string()) continue;
    std::string_view text = name->get_ref<const std::string&>();
    if (text.ends_with('#')) text.remove_suffix(1);
    if (!text.empty() && reference.starts_with(text) && reference.substr(text.size()).starts_with('#')) {
      reference.remove_prefix(text.size());
    }
  }
  if (!reference.starts_with("#")) {
    return error(StatusCode::kUnsupported, "$ref '{}' leaves the schema; wanted one that begins with '#'", reference);
  }
  const Schema* at = &root_;
  std::string_view rest = reference.substr(1);
  while (!rest.empty()) {
    if (rest[0] != '/') {
      if (const Schema* anchored = at == &root_ ? find_anchor(root_, rest) : nullptr) return anchored;
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
  ASSIGN_OR_RETURN(const Schema resolved, without_reference(*target, depth + 1));
  Schema siblings = schema;
  siblings.erase("$ref");
  return merge(resolved, siblings, depth + 1);
}

Result<Schema> SchemaMerger::merge(const Schema& first, const Schema& second, int depth) const {
  const auto is_true = [](const Schema& schema) { return schema == Schema(true) || schema == Schema::object(); };
  if (is_true(first) || second == Schema(false)) return second;
  if (is_true(second) || first == Schema(false)) return first;
  const auto is_not = [](const Schema& schema, const Schema& other) {
    return schema.is_object() && schema.size() == 1 && schema.contains("not") && schema.at("not") == other;
  };
  if (is_not(first, second) || is_not(second, first)) return Schema(false);
  if (depth > kMaxMergeDepth) {
    return error(StatusCode::kUnsupported, "schemas that have to be joined lie more than {} deep", kMaxMergeDepth);
  }
  RETURN_IF_ERROR(work_.spend((values_in(first) + values_in(second)) * kValueSteps));
  if (++merges_ > kMaxMerges) {
    return error(StatusCode::kTooLarge, "the schema needs more than {} schemas to be joined; wanted a simpler one",
                 kMaxMerges);
  }
  ASSIGN_OR_RETURN(Schema a, without_reference(first, depth));
  ASSIGN_OR_RETURN(Schema b, without_reference(second, depth));
  ASSIGN_OR_RETURN(a, rewritten(*this, a, depth));
  ASSIGN_OR_RETURN(b, rewritten(*this, b, depth));
  if (a.is_boolean()) return a.get<bool>() ? b : a;
  if (b.is_boolean()) return b.get<bool>() ? a : b;
  if (!a.is_object() || !b.is_object()) return invalid_argument("a schema is no object; wanted one, or true or false");
  const Schema *const_a = find_key(a, "const"), *const_b = find_key(b, "const");
  if (const_a && const_b && *const_a != *const_b) return Schema(false);
  unfold_flags(a);
  unfold_flags(b);
  Schema out = Schema::object();
  for (const auto& [key, value] : a.items()) {
    if (is_of_properties(key) || is_of_items(key)) continue;
    const Schema* other = find_key(b, key.c_str());
    if (!other || *other == value || is_annotation(key)) {
      if (is_list(key) && out.contains(key)) {
        append_new(out[key], value);
      } else {
        out[key] = value;
      }
    } else {
      RETURN_IF_ERROR(merge_keyword(key, value, *other, out, depth));
    }
  }
  for (const auto& [key, value] : b.items()) {
    if (is_of_properties(key) || is_of_items(key) || a.contains(key)) continue;
    if (is_list(key) && out.contains(key)) {
      append_new(out[key], value);
    } else {
      out[key] = value;
    }
  }
  RETURN_IF_ERROR(merge_items(a, b, out, depth));
  RETURN_IF_ERROR(merge_properties(a, b, out, depth));
  keep_typed_values(out);
  return is_false(out) ? Schema(false) : out;
}

Status SchemaMerger::merge_keyword(const std::string& key, const Schema& value, const Schema& other, Schema& out,
                                   int depth) const {
  const auto also = [&](const char* list, Schema more) { append_new(out[list], Schema::array({std::move(more)})); };
  if (key == "type") {
    out[key] = common_types(types_of({{"type", value}}), types_of({{"type", other}}));
  } else if (key == "required" && value.is_array() && other.is_array()) {
    out[key] = value;
    append_new(out[key], other);
  } else if (key == "enum" && value.is_array() && other.is_array()) {
    const ValueSet others(other);
    Schema both = Schema::array();
    std::copy_if(value.begin(), value.end(), std::back_inserter(both),
                 [&](const Schema& one) { return others.contains(one); });
    out[key] = both;
  } else if (is_lower_bound(key) && value.is_number() && other.is_number()) {
    out[key] = value < other ? other : value;
  } else if (is_upper_bound(key) && value.is_number() && other.is_number()) {
    out[key] = other < value ? other : value;
  } else if (key == "pattern") {
    out[key] = value;
    also(joined::kPatterns, other);
  } else if (key == "format" && value.is_string() && other.is_string()) {
    const bool keeps = is_standard_format(value.get_ref<const std::string&>());
    out[key] = keeps ? value : other;
    if (keeps && is_standard_format(other.get_ref<const std::string&>())) also(joined::kFormats, other);
  } else if (key == "anyOf") {
    out[key] = value;
    also(joined::kEach, other);
  } else if (key == "oneOf") {
    out[key] = value;
    ASSIGN_OR_RETURN(Schema alternatives, exclusive(*this, other, true, depth + 1));
    also(joined::kEach, std::move(alternatives));
  } else if (is_list(key) && value.is_array() && other.is_array()) {
    if (!out.contains(key)) out[key] = Schema::array();
    append_new(out[key], value);
    append_new(out[key], other);
  } else if (key == "uniqueItems") {
    out[key] = true;
  } else if (key == "multipleOf" && value.is_number_integer() && other.is_number_integer() && value > 0 && other > 0) {
    out[key] = std::lcm(value.get<int64_t>(), other.get<int64_t>());
  } else if (is_constraint(key) || is_lower_bound(key) || is_upper_bound(key) || key == "required" || key == "enum") {
    return not_joined(key);
  } else {
    out[key] = value;  // an annotation
  }
  return ok_status();
}

Result<Schema> SchemaMerger::merge_all(Schema first, std::span<const Schema> list) const {
  constexpr std::size_t kFew = 16;
  if (list.size() <= kFew) {
    for (const Schema& one : list) {
      ASSIGN_OR_RETURN(first, merge(first, one));
    }
    return first;
  }
  const std::span<const Schema> behind = list.subspan(list.size() / 2);
  ASSIGN_OR_RETURN(first, merge_all(std::move(first), list.first(list.size() / 2)));
  ASSIGN_OR_RETURN(const Schema rest, merge_all(behind.front(), behind.subspan(1)));
  return merge(first, rest);
}

Result<Schema> SchemaMerger::merge_lazily(const Schema& a, const Schema& b, int depth) const {
  const auto refers = [](const Schema& schema) { return schema.is_object() && schema.contains("$ref"); };
  const auto is_plain = [](const Schema& schema) { return schema.is_boolean() || schema == Schema::object(); };
  if (a == b) return a;
  if (!is_plain(a) && !is_plain(b) && (refers(a) || refers(b))) return Schema{{"allOf", Schema::array({a, b})}};
  return merge(a, b, depth);
}

// What stands behind the named items of one schema meets those that the other names.
Status SchemaMerger::merge_items(const Schema& a, const Schema& b, Schema& out, int depth) const {
  static const Schema kNone = Schema::array(), kAny = true;
  const auto is_old = [](const Schema& of) { return of.contains("items") && of.at("items").is_array(); };
  const auto prefix = [&](const Schema& of) -> const Schema& {
    return part(of, is_old(of) ? "items" : "prefixItems", kNone);
  };
  const auto rest = [&](const Schema& of) -> const Schema& {
    return part(of, is_old(of) ? "additionalItems" : "items", kAny);
  };
  const Schema &prefix_a = prefix(a), &prefix_b = prefix(b);
  if (!prefix_a.is_array() || !prefix_b.is_array()) return invalid_argument("prefixItems is no array; wanted one");
  Schema merged = Schema::array();
  for (std::size_t i = 0; i < std::max(prefix_a.size(), prefix_b.size()); ++i) {
    ASSIGN_OR_RETURN(Schema one, merge_lazily(i < prefix_a.size() ? prefix_a[i] : rest(a),
                                              i < prefix_b.size() ? prefix_b[i] : rest(b), depth + 1));
    merged.push_back(std::move(one));
  }
  if (!merged.empty()) out["prefixItems"] = std::move(merged);
  ASSIGN_OR_RETURN(Schema behind, merge_lazily(rest(a), rest(b), depth + 1));
  if (behind != kAny) out["items"] = std::move(behind);
  return ok_status();
}

// A property that one side does not name is an additional one there.
Status SchemaMerger::merge_properties(Schema& a, Schema& b, Schema& out, int depth) const {
  static const Schema kNone = Schema::object(), kAny = true;
  for (const char* key : {"properties", "patternProperties"}) {
    if (!part(a, key, kNone).is_object() || !part(b, key, kNone).is_object()) {
      return invalid_argument("{} is no object; wanted one", key);
    }
  }
  const auto has_keys = [](const Schema& of) { return of.contains("patternProperties") || of.contains(joined::kKeys); };
  if (has_keys(a) || has_keys(b)) {
    fold_additional(a);
    fold_additional(b);
  }
  const Schema& more_a = part(a, "additionalProperties", kAny);
  const Schema& more_b = part(b, "additionalProperties", kAny);
  for (const char* key : {"properties", "patternProperties"}) {
    const bool additional = key[1] == 'r';
    const Schema& named_a = part(a, key, kNone);
    const Schema& named_b = part(b, key, kNone);
    const KeyIndex of_a(named_a), of_b(named_b);
    Schema merged = Schema::object();
    for (const auto& [name, schema] : named_a.items()) {
      const Schema* other = of_b.find(name);
      if (!other) other = additional ? &more_b : &kAny;
      ASSIGN_OR_RETURN(Schema both, merge_lazily(schema, *other, depth + 1));
      add_member(merged, name, std::move(both));
    }
    for (const auto& [name, schema] : named_b.items()) {
      if (of_a.find(name)) continue;
      ASSIGN_OR_RETURN(Schema both, merge_lazily(additional ? more_a : kAny, schema, depth + 1));
      add_member(merged, name, std::move(both));
    }
    if (!merged.empty()) out[key] = std::move(merged);
  }
  for (const Schema* of : {&a, &b}) {
    if (const Schema* keys = find_key(*of, joined::kKeys)) append_new(out[joined::kKeys], *keys);
  }
  if (more_a != kAny || more_b != kAny) {
    ASSIGN_OR_RETURN(out["additionalProperties"], merge_lazily(more_a, more_b, depth + 1));
  }
  return ok_status();
}

}  // namespace millrace::grammar
