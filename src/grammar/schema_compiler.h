// SchemaCompiler: one schema's way into rules. json_schema.cc begins it; the members for objects and arrays are in
// schema_containers.cc, those for values without parts in json_schema.cc.
//
// Owner: parse_json_schema(). Thread safety: none.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "grammar/json_merge.h"
#include "grammar/json_text.h"
#include "grammar/language.h"
#include "grammar/schema_work.h"

namespace millrace::grammar {

// Where a schema stands in the document, for messages: "properties.x.items".
using SchemaPath = std::string;

class SchemaCompiler {
 public:
  // `work`: of the document, which several compilers may share.
  SchemaCompiler(const Schema& root, SchemaWork& work) : root_(root), work_(work), merger_(root, work), json_(rules_) {}

  // A schema whose references point into the root, which it may be.
  Result<Rules> compile(const Schema& schema, int depth = 0);

 private:
  // A schema of any kind; `depth` counts schemas in schemas.
  Result<ExprPtr> any(const Schema& schema, const SchemaPath& path, int depth);
  // The same as a rule of its own, so that several places share its nodes.
  Result<ExprPtr> shared(const Schema& schema, const SchemaPath& path, int depth);
  Result<ExprPtr> reference(const std::string& pointer);
  Result<ExprPtr> alternatives(const Schema& schema, const char* keyword, const SchemaPath& path, int depth);
  Result<ExprPtr> values(const Schema& schema, const SchemaPath& path, int depth);
  Result<ExprPtr> typed(const Schema& schema, const std::string& type, const SchemaPath& path, int depth);
  Result<ExprPtr> string(const Schema& schema, const SchemaPath& path);
  struct StringRules {
    std::vector<std::string> wanted, refused;  // patterns
    std::vector<std::string> not_values;
  };
  Result<StringRules> string_rules(const Schema& schema, const SchemaPath& path);
  // What stands between a string's quotation marks where the string has a match of the pattern; `counted`: with a tick
  // for each character.
  Result<ExprPtr> content_of(std::string_view pattern, const SchemaPath& path, bool counted);
  static ExprPtr any_content();
  Result<ExprPtr> number(const Schema& schema, bool integer, const SchemaPath& path);
  Result<ExprPtr> array(const Schema& schema, const SchemaPath& path, int depth);
  Result<ExprPtr> object(const Schema& schema, const SchemaPath& path, int depth);
  // "key": value, with white space behind it.
  ExprPtr member(ExprPtr key, ExprPtr value);
  struct Named {
    ExprPtr member;
    bool required = false;
  };
  // `more`: one that is not named; `extra`: one of those that has to stand, or nullptr.
  Result<ExprPtr> members(const std::vector<Named>& named, const ExprPtr& more, const ExprPtr& extra, Count count,
                          const SchemaPath& path);
  struct Behind {
    ExprPtr first, after;
  };
  Behind members_behind(const ExprPtr& more, const ExprPtr& extra, bool only_first, bool bounded,
                        const ExprPtr& one_more);
  // The keys that one of patternProperties, or another condition on keys, applies to.
  struct KeyPattern {
    Language keys;
    Schema value;
  };
  // Keys without a name of their own that match the same patterns.
  struct KeyClass {
    Language keys;
    std::vector<bool> matches;
  };
  // An object of which some key has a value that its condition refuses: joined::kSome.
  Result<ExprPtr> object_with_some(const Schema& schema, const SchemaPath& path, int depth);
  Result<std::vector<KeyPattern>> key_patterns(const Schema& schema, const SchemaPath& path);
  Result<Language> keys_of(const Schema& condition, const SchemaPath& path);
  Result<std::vector<KeyClass>> key_classes(const std::vector<KeyPattern>& patterns,
                                            const std::vector<std::string>& names, const SchemaPath& path);
  Result<Schema> joined_value(Schema value, const std::vector<KeyPattern>& patterns, const std::vector<bool>& matches,
                              const SchemaPath& path);
  Result<ExprPtr> extra_member(const Schema& schema, const Schema& condition, std::vector<KeyPattern> patterns,
                               const SchemaPath& path, int depth);
  Result<ExprPtr> more_members(const Schema& schema, const std::vector<KeyPattern>& patterns, const SchemaPath& path,
                               int depth);
  Result<ExprPtr> members_by_pattern(const Schema& more, const std::vector<KeyPattern>& patterns,
                                     const std::vector<std::string>& names, const SchemaPath& path, int depth);
  // A key that is none of the names.
  Result<ExprPtr> other_key(const std::vector<std::string>& names, const SchemaPath& path);
  ExprPtr other_key_from(const std::vector<std::u32string_view>& names, std::size_t at);

  const Schema& root_;
  SchemaWork& work_;
  const SchemaMerger merger_;
  Rules rules_;
  JsonText json_;
  std::size_t paid_rules_ = 0;             // of rules_, those that work_ has
  std::map<std::string, ExprPtr> shared_;  // by the schema's text: a rule, or never()
  std::map<std::string, int> references_;  // by pointer: its rule
  std::vector<std::string> referred_;      // pointers whose rules have no body yet
};

// A member of a schema that has to be of a type; nullptr where it is absent.
Result<const Schema*> array_member(const Schema& schema, const char* key, const SchemaPath& path);
Result<const Schema*> object_member(const Schema& schema, const char* key, const SchemaPath& path);
// A count of 0 or more; nullopt where it is absent.
Result<std::optional<int>> count_member(const Schema& schema, const char* key, const SchemaPath& path);
Status not_served(const SchemaPath& path, std::string_view keyword, std::string_view wanted);

}  // namespace millrace::grammar
