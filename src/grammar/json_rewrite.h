// Keywords that speak of what a value must not be, as schemas without them: not, if, then, else, dependencies,
// propertyNames and the oneOf of schemas that overlap become anyOf and allOf of the others (De Morgan's laws; what is
// not of a type has another, what is not longer has at most that length, ...).
//
// A negation may come out narrower than it is, never wider: so a grammar of it accepts no wrong value. Where nothing
// would be left of it, it is refused.
//
// Thread safety: free functions without state.
#pragma once

#include "base/status.h"
#include "grammar/json_merge.h"

namespace millrace::grammar {

inline constexpr std::size_t kMaxOneOf = 64;  // alternatives of a negated oneOf, or of one whose alternatives overlap
inline constexpr std::size_t kMaxComparedOneOf = 512;  // alternatives whose pairs have to be compared

// The values that do not satisfy the schema.
Result<Schema> negated(const SchemaMerger& merger, const Schema& schema, int depth);

// The same values by the keywords that SchemaCompiler and SchemaMerger know. Only this schema is rewritten, not those
// in its properties and items.
Result<Schema> rewritten(const SchemaMerger& merger, const Schema& schema, int depth);

// The alternatives of a oneOf, each without the values of the others. `beside`: the keywords beside it, which are part
// of every alternative.
Result<Schema> exclusive(const SchemaMerger& merger, const Schema& alternatives, const Schema& beside, int depth);

}  // namespace millrace::grammar
