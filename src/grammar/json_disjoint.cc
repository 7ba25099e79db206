#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "grammar/json_index.h"
#include "grammar/json_merge.h"
#include "grammar/regex.h"
#include "grammar/state_table.h"

namespace millrace::grammar {
namespace {

constexpr int kMaxDisjointDepth = 8;
constexpr int kMaxReferences = 32;       // one to the next
constexpr std::size_t kCopyCost = 100;   // of a schema, in keys that are compared
constexpr int kMaxKindDepth = 2;         // of the property that separates alternatives
constexpr std::size_t kMaxKindKeys = 4;  // that are tried for it

using Values = std::vector<const Schema*>;

// The values of const or enum; nullopt: the schema has neither.
std::optional<Values> values_of(const Schema& schema) {
  if (const Schema* one = find_key(schema, "const")) return Values{one};
  const Schema* some = find_key(schema, "enum");
  if (!some || !some->is_array()) return std::nullopt;
  Values out;
  for (const Schema& value : *some) out.push_back(&value);
  return out;
}

// With those of const and enum.
std::vector<std::string> types_with_values(const Schema& schema) {
  std::vector<std::string> types = types_of(schema);
  if (const auto values = values_of(schema)) {
    std::erase_if(types, [&](const std::string& type) {
      return std::none_of(values->begin(), values->end(), [&](const Schema* value) { return has_type(*value, type); });
    });
  }
  return types;
}

// Whether a key that `properties` does not name may not stand; false where that is not certain.
bool forbids(const Schema& schema, const std::string& key) {
  const Schema* more = find_key(schema, "additionalProperties");
  if (schema.contains(joined::kKeys) || !more || *more != Schema(false)) return false;
  const Schema* patterns = find_key(schema, "patternProperties");
  if (!patterns) return true;
  if (!patterns->is_object()) return false;
  const auto as_it_is = [](const CharSet& set) { return chars(set); };
  for (const auto& [pattern, value] : patterns->items()) {
    const Result<ExprPtr> keys = parse_regex(pattern, RegexMatch::kAnywhere, as_it_is);
    if (!keys.ok()) return false;
    const auto grammar = Grammar::compile({{*keys}, {"a pattern"}, {}});
    if (!grammar.ok()) return false;
    StateTable states(*grammar);
    if (states.can_end(states.step(states.start(), key))) return false;
  }
  return true;
}

// Whether all are const or enum, and none has a value of another.
bool all_have_other_values(const std::vector<const Schema*>& schemas) {
  ValueSet known;
  for (const Schema* schema : schemas) {
    const auto values = values_of(*schema);
    if (!values) return false;
    ValueSet mine;  // an enum may have one twice
    for (const Schema* value : *values) {
      if (mine.insert(*value) && !known.insert(*value)) return false;
    }
  }
  return true;
}

// The schemas of a property that all of them have and require; empty: one does not.
std::vector<const Schema*> values_of_required(const std::vector<const Schema*>& schemas, const Schema& key) {
  std::vector<const Schema*> out;
  for (const Schema* schema : schemas) {
    const Schema* required = find_key(*schema, "required");
    const Schema* named = find_key(*schema, "properties");
    const bool needs = key.is_string() && required && required->is_array() &&
                       std::find(required->begin(), required->end(), key) != required->end();
    const Schema* value =
        needs && named && named->is_object() ? find_key(*named, key.get_ref<const std::string&>().c_str()) : nullptr;
    if (!value) return {};
    out.push_back(value);
  }
  return out;
}

}  // namespace

std::vector<std::string> common_types(const std::vector<std::string>& a, const std::vector<std::string>& b) {
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

const Schema* SchemaMerger::resolved(const Schema& schema, Schema& storage) const {
  // Alone, a reference is followed; beside other keywords it is joined with them, in a copy.
  const Schema* at = &schema;
  for (int i = 0; at->is_object() && at->size() == 1 && at->contains("$ref"); ++i) {
    if (i == kMaxReferences || !at->at("$ref").is_string()) return nullptr;
    const Result<const Schema*> target = find(at->at("$ref").get_ref<const std::string&>());
    if (!target.ok()) return nullptr;
    at = *target;
  }
  if (!at->is_object() || !at->contains("$ref")) return at;
  compared_ += kCopyCost;
  Result<Schema> found = without_reference(*at, 0);
  if (!found.ok()) return nullptr;
  storage = std::move(*found);
  return &storage;
}

bool SchemaMerger::all_disjoint(const std::vector<const Schema*>& all, int depth) const {
  std::vector<Schema> storage(all.size());
  std::vector<const Schema*> schemas;
  for (std::size_t i = 0; i < all.size(); ++i) {
    schemas.push_back(resolved(*all[i], storage[i]));
    if (!schemas.back() || !schemas.back()->is_object()) return false;
  }
  if (all_have_other_values(schemas)) return true;
  if (depth == kMaxKindDepth) return false;
  const auto is_kind = [](const Schema* one) {
    return types_of(*one) == std::vector<std::string>{"object"} && find_key(*one, "required");
  };
  if (!std::all_of(schemas.begin(), schemas.end(), is_kind)) return false;
  const Schema& keys = *find_key(*schemas.front(), "required");
  for (std::size_t i = 0; keys.is_array() && i < std::min(keys.size(), kMaxKindKeys); ++i) {
    const std::vector<const Schema*> values = values_of_required(schemas, keys[i]);
    if (!values.empty() && all_disjoint(values, depth + 1)) return true;
  }
  return false;
}

bool SchemaMerger::disjoint(const Schema& first, const Schema& second, int depth) const {
  // Schemas that refer to themselves have as many pairs as the number of their properties to the power of the depth.
  if (depth > kMaxDisjointDepth || compared_ > kMaxCompared) return false;
  compared_ += 1 + first.size() + second.size();
  Schema storage_a, storage_b;
  const Schema *a = resolved(first, storage_a), *b = resolved(second, storage_b);
  if ((a && *a == Schema(false)) || (b && *b == Schema(false))) return true;
  if (!a || !b || !a->is_object() || !b->is_object()) return false;
  if (common_types(types_with_values(*a), types_with_values(*b)).empty()) return true;
  const auto values_a = values_of(*a), values_b = values_of(*b);
  if (values_a && values_b) {
    ValueSet known;
    for (const Schema* value : *values_b) known.insert(*value);
    return std::none_of(values_a->begin(), values_a->end(),
                        [&](const Schema* value) { return known.contains(*value); });
  }
  // All alternatives of one are apart from the other.
  for (const auto& pair : {std::pair(a, b), std::pair(b, a)}) {
    for (const char* key : {"anyOf", "oneOf"}) {
      const Schema* listed = find_key(*pair.first, key);
      if (listed && listed->is_array() && std::all_of(listed->begin(), listed->end(), [&](const Schema& one) {
            return disjoint(one, *pair.second, depth + 1);
          })) {
        return true;
      }
    }
  }
  if (types_of(*a) != std::vector<std::string>{"object"} || types_of(*b) != types_of(*a)) return false;
  return apart(*a, *b, depth) || apart(*b, *a, depth);
}

// Two kinds of objects: `x` needs a property that `y` forbids, or that has other values there.
bool SchemaMerger::apart(const Schema& x, const Schema& y, int depth) const {
  const Schema* required = find_key(x, "required");
  const Schema* named_x = find_key(x, "properties");
  const Schema* named_y = find_key(y, "properties");
  const Schema* also = find_key(y, "required");
  if (!required || !required->is_array() || (named_y && !named_y->is_object())) return false;
  static const Schema kNone = Schema::object();
  const KeyIndex mine(named_x ? *named_x : kNone), theirs(named_y ? *named_y : kNone);
  const ValueSet also_required(also ? *also : kNone);
  compared_ += required->size() + (named_x ? named_x->size() : 0) + (named_y ? named_y->size() : 0);
  return std::any_of(required->begin(), required->end(), [&](const Schema& name) {
    if (!name.is_string()) return false;
    const auto& key = name.get_ref<const std::string&>();
    const Schema* value = theirs.find(key);
    if (!value) return forbids(y, key);
    if (*value == Schema(false)) return true;
    const Schema* my_value = also_required.contains(name) ? mine.find(key) : nullptr;
    return my_value && disjoint(*my_value, *value, depth + 1);
  });
}

}  // namespace millrace::grammar
