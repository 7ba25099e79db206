// The conjunction of JSON Schemas as one schema, for allOf, for $ref beside other keywords, and for keywords beside
// anyOf; and whether no value satisfies two of them, which is what makes oneOf the same as anyOf.
//
// Owner: the schema's compiler. Thread safety: none.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace millrace::grammar {

using Schema = nlohmann::ordered_json;  // properties keep the sequence in which they are written

inline constexpr int kMaxMergeDepth = 32;             // of schemas in schemas, references followed
inline constexpr std::size_t kMaxAlternatives = 256;  // of anyOf within anyOf, multiplied out

class SchemaMerger {
 public:
  explicit SchemaMerger(const Schema& root) : root_(root) {}

  // What "#", "#/$defs/x" or another pointer into the same document names. kInvalidArgument where it names nothing,
  // kUnsupported where it leaves the document.
  Result<const Schema*> find(std::string_view reference) const;

  // A schema that exactly the values satisfy that satisfy both. kUnsupported names the keyword where they cannot be
  // joined.
  Result<Schema> merge(const Schema& a, const Schema& b, int depth = 0) const;

  // Whether no value is known to satisfy both; false where that is not certain.
  bool disjoint(const Schema& a, const Schema& b) const;

 private:
  Result<Schema> without_reference(const Schema& schema, int depth) const;
  Status merge_keyword(const std::string& key, const Schema& value, const Schema& other, Schema& out, int depth) const;
  Status merge_properties(const Schema& a, const Schema& b, Schema& out, int depth) const;

  const Schema& root_;
};

// The types that a schema allows, "integer" and "number" apart; all of them where it has no `type`.
std::vector<std::string> types_of(const Schema& schema);
// What constrains no value: title, description, default, ...
bool is_annotation(std::string_view keyword);

}  // namespace millrace::grammar
