#include <algorithm>
#include <optional>
#include <vector>

#include "grammar/json_merge.h"
#include "grammar/regex.h"
#include "grammar/state_table.h"

namespace millrace::grammar {
namespace {

constexpr int kMaxDisjointDepth = 8;

// The values of const or enum; nullopt: the schema has neither.
std::optional<std::vector<Schema>> values_of(const Schema& schema) {
  if (const Schema* one = find_key(schema, "const")) return std::vector<Schema>{*one};
  const Schema* some = find_key(schema, "enum");
  if (!some || !some->is_array()) return std::nullopt;
  return std::vector<Schema>(some->begin(), some->end());
}

// With those of const and enum.
std::vector<std::string> types_with_values(const Schema& schema) {
  std::vector<std::string> types = types_of(schema);
  if (const auto values = values_of(schema)) {
    std::erase_if(types, [&](const std::string& type) {
      return std::none_of(values->begin(), values->end(), [&](const Schema& value) { return has_type(value, type); });
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

bool SchemaMerger::disjoint(const Schema& first, const Schema& second, int depth) const {
  if (depth > kMaxDisjointDepth) return false;
  const Result<Schema> a = without_reference(first, 0), b = without_reference(second, 0);
  if ((a.ok() && *a == Schema(false)) || (b.ok() && *b == Schema(false))) return true;
  if (!a.ok() || !b.ok() || !a->is_object() || !b->is_object()) return false;
  if (common_types(types_with_values(*a), types_with_values(*b)).empty()) return true;
  const auto values_a = values_of(*a), values_b = values_of(*b);
  if (values_a && values_b) {
    return std::none_of(values_a->begin(), values_a->end(), [&](const Schema& value) {
      return std::find(values_b->begin(), values_b->end(), value) != values_b->end();
    });
  }
  // All alternatives of one are apart from the other.
  for (const auto& pair : {std::pair(&*a, &*b), std::pair(&*b, &*a)}) {
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
  const Schema* mine = find_key(x, "properties");
  const Schema* theirs = find_key(y, "properties");
  const Schema* also = find_key(y, "required");
  if (!required || !required->is_array() || (theirs && !theirs->is_object())) return false;
  return std::any_of(required->begin(), required->end(), [&](const Schema& name) {
    if (!name.is_string()) return false;
    const auto& key = name.get_ref<const std::string&>();
    const Schema* value = theirs ? find_key(*theirs, key.c_str()) : nullptr;
    if (!value) return forbids(y, key);
    if (*value == Schema(false)) return true;
    const bool both_require = also && also->is_array() && std::find(also->begin(), also->end(), name) != also->end();
    return both_require && mine && mine->is_object() && mine->contains(key) &&
           disjoint(mine->at(key), *value, depth + 1);
  });
}

}  // namespace millrace::grammar
