// The conjunction of JSON Schemas as one schema, for allOf, for $ref beside other keywords, and for keywords beside
// anyOf; and whether no value satisfies two of them, which is what makes oneOf the same as anyOf.
//
// A joined schema may have keywords that no document has (namespace joined): what several patterns or anyOf state at
// once.
//
// Owner: the schema's compiler. Thread safety: none.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "grammar/schema_work.h"

namespace millrace::grammar {

using Schema = nlohmann::ordered_json;  // properties keep the sequence in which they are written

inline constexpr double kFarthestCount = 1e9;           // of lengths, items and properties; more are as many
inline constexpr int kMaxMergeDepth = 32;               // of schemas in schemas, references followed
inline constexpr std::size_t kMaxMerges = 5'000;        // of one schema
inline constexpr std::size_t kMaxCompared = 2'000'000;  // keys and schemas, for what is disjoint in one schema

// Keywords of joined schemas. They begin with a control character, so that no document that means something has them;
// one that has is refused.
namespace joined {
inline constexpr const char* kEach =
    "\x01"
    "each";  // a list of anyOf's: one of each
inline constexpr const char* kPatterns =
    "\x01"
    "patterns";  // a string matches all of these too
inline constexpr const char* kNotPatterns =
    "\x01"
    "notPatterns";  // and none of these
inline constexpr const char* kFormats =
    "\x01"
    "formats";
inline constexpr const char* kNotValues =
    "\x01"
    "notValues";  // and is none of these strings
// A list of {"patterns", "names", "value"}: a key that matches none of the patterns and is none of the names has this
// value. {"unless", "value"}: a key that is no value of the schema "unless".
inline constexpr const char* kKeys =
    "\x01"
    "keys";
// The opposite, a list too: some key of which this condition speaks, or of {"pattern", "value"}, has another value.
inline constexpr const char* kSome =
    "\x01"
    "some";
// The same of one condition, where the key is none that `properties` names.
inline constexpr const char* kExtra =
    "\x01"
    "extra";
}  // namespace joined

class SchemaMerger {
 public:
  SchemaMerger(const Schema& root, SchemaWork& work) : root_(root), work_(work) {}

  // What "#", "#/$defs/x" or another pointer into the same document names. kInvalidArgument where it names nothing,
  // kUnsupported where it leaves the document.
  Result<const Schema*> find(std::string_view reference) const;

  // A schema that exactly the values satisfy that satisfy both. kUnsupported names the keyword where they cannot be
  // joined; kTooLarge: over kMaxMerges.
  Result<Schema> merge(const Schema& a, const Schema& b, int depth = 0) const;

  // As merge(), but a reference is left for later, so that schemas that refer to themselves come to an end.
  Result<Schema> merge_lazily(const Schema& a, const Schema& b, int depth) const;

  // The schema that a $ref names, joined with the keywords beside it.
  Result<Schema> without_reference(const Schema& schema, int depth) const;

  // That of `first` and all of a list. Parts of a long one are joined first: one after the other, what has been joined
  // would be copied once for each that follows.
  Result<Schema> merge_all(Schema first, std::span<const Schema> list) const;

  // Whether no value is known to satisfy both; false where that is not certain, as it is not over kMaxCompared.
  bool disjoint(const Schema& a, const Schema& b, int depth = 0) const;

  // Whether they are disjoint in pairs, by what separates alternatives in most documents: they are values, or objects
  // with a property that is. False where pairs have to be compared.
  bool all_disjoint(const std::vector<const Schema*>& all, int depth = 0) const;

 private:
  // The schema, or in `storage` what its reference names; nullptr: that cannot be found.
  const Schema* resolved(const Schema& schema, Schema& storage) const;
  bool apart(const Schema& x, const Schema& y, int depth) const;
  Status merge_keyword(const std::string& key, const Schema& value, const Schema& other, Schema& out, int depth) const;
  Status merge_items(const Schema& a, const Schema& b, Schema& out, int depth) const;
  Status merge_properties(Schema& a, Schema& b, Schema& out, int depth) const;

  const Schema& root_;
  SchemaWork& work_;
  mutable std::size_t merges_ = 0;
  mutable std::size_t compared_ = 0;  // by disjoint()
};

// The types that a schema allows, "integer" and "number" apart; all of them where it has no `type`.
std::vector<std::string> types_of(const Schema& schema);
bool has_type(const Schema& value, const std::string& type);
// additionalProperties as the last of joined::kKeys, which keeps its meaning beside other properties and patterns.
void fold_additional(Schema& schema);
// What constrains no value: title, description, default, ...
bool is_annotation(std::string_view keyword);
Status not_joined(std::string_view keyword);
const Schema* find_key(const Schema& object, const char* key);
// The types that both lists allow.
std::vector<std::string> common_types(const std::vector<std::string>& a, const std::vector<std::string>& b);

}  // namespace millrace::grammar
