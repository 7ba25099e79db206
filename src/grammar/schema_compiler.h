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

namespace millrace::grammar {

// Where a schema stands in the document, for messages: "properties.x.items".
using SchemaPath = std::string;

class SchemaCompiler {
 public:
  explicit SchemaCompiler(const Schema& root) : root_(root), merger_(root), json_(rules_) {}

  Result<Rules> compile();

 private:
  // A schema of any kind; `depth` counts schemas in schemas.
  Result<ExprPtr> any(const Schema& schema, const SchemaPath& path, int depth);
  // The same as a rule of its own, so that several places share its nodes.
  Result<ExprPtr> shared(const Schema& schema, const SchemaPath& path, int depth);
  Result<ExprPtr> reference(const std::string& pointer);
  Result<ExprPtr> alternatives(const Schema& schema, const char* keyword, const SchemaPath& path, int depth);
  Result<ExprPtr> values(const Schema& schema, const SchemaPath& path);
  Result<ExprPtr> typed(const Schema& schema, const std::string& type, const SchemaPath& path, int depth);
  Result<ExprPtr> string(const Schema& schema, const SchemaPath& path);
  // What stands between a string's quotation marks where the string has a match of the pattern.
  Result<ExprPtr> content_of(std::string_view pattern, const SchemaPath& path);
  Result<ExprPtr> number(const Schema& schema, bool integer, const SchemaPath& path);
  Result<ExprPtr> array(const Schema& schema, const SchemaPath& path, int depth);
  Result<ExprPtr> object(const Schema& schema, const SchemaPath& path, int depth);
  // "key": value, with white space behind it.
  ExprPtr member(ExprPtr key, ExprPtr value);
  // One of patternProperties.
  struct KeyPattern {
    Language keys;
    Schema value;
  };
  Result<std::vector<KeyPattern>> key_patterns(const Schema& schema, const SchemaPath& path);
  Result<Schema> joined(Schema value, const std::vector<KeyPattern>& patterns, const std::vector<bool>& matches,
                        const SchemaPath& path);
  Result<ExprPtr> more_members(const Schema& schema, const std::vector<KeyPattern>& patterns, const SchemaPath& path,
                               int depth);
  Result<ExprPtr> members_by_pattern(const Schema& more, const std::vector<KeyPattern>& patterns,
                                     const std::vector<std::string>& names, const SchemaPath& path, int depth);
  // A key that is none of the names.
  Result<ExprPtr> other_key(const std::vector<std::string>& names, const SchemaPath& path);
  ExprPtr other_key_from(const std::vector<std::u32string>& names, std::size_t at);

  const Schema& root_;
  const SchemaMerger merger_;
  Rules rules_;
  JsonText json_;
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
