// JSON Schema (2020-12, and draft 7's spellings) as grammars: the texts of a grammar are JSON documents that the schema
// accepts. Never others: a keyword that cannot be kept is refused with its name and path, and so are combinations that
// cannot be decided. docs/structured-output.md lists what is served.
//
// Properties stand in the sequence in which the schema writes them, additional ones behind them. Where `type` is absent
// the keywords decide it (`properties`: an object). White space between tokens is bounded (json_text.h).
//
// Stateless.
#pragma once

#include <string_view>

#include "base/status.h"
#include "grammar/grammar.h"
#include "grammar/schema_work.h"

namespace millrace::grammar {

inline constexpr int kMaxSchemaNesting = 128;  // of JSON values in the schema's text

// kInvalidArgument, kUnsupported: the path and the keyword, "properties.x.not is not served; wanted ...".
Result<Rules> parse_json_schema(std::string_view schema);
// One of several schemas that are compiled together.
Result<Rules> parse_json_schema(std::string_view schema, SchemaWork& work);

}  // namespace millrace::grammar
