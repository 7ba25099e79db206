// JSON for cold paths (requests, configs): nlohmann::json behind a bounded parser and typed getters.
//
// parse_json refuses what nlohmann would accept or mangle: nesting over the limit, duplicate keys, invalid UTF-8,
// trailing bytes. The getters refuse what get<T>() would silently convert (1.5 -> 1, -1 -> 4294967295, true -> 1) and
// name the field. Only .cc files include this header together with <nlohmann/json.hpp>; other headers use the forward
// declaration.
//
// Thread safety: free functions without state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "base/status.h"

namespace millrace {

using Json = nlohmann::json;

inline constexpr int kJsonMaxDepth = 64;

// Parses one JSON document. Errors are kInvalidArgument, name the byte offset where the text is malformed, or the key
// that stands twice, and never echo the content.
Result<Json> parse_json(std::string_view text, int max_depth = kJsonMaxDepth);

// "null", "boolean", "integer", "number", "string", "array", "object": the words used in messages.
std::string_view json_type_name(const Json& value);

// Reads `object[key]` when it is present and not null. On absence `out` is left as it is and the result is OK.
// A wrong type is kInvalidArgument: "temperature is a string; wanted a number".
Status json_read(const Json& object, std::string_view key, bool& out);
Status json_read(const Json& object, std::string_view key, int64_t& out);
Status json_read(const Json& object, std::string_view key, double& out);
Status json_read(const Json& object, std::string_view key, std::string& out);

// The member, or nullptr when `object` has no such key or it is null. `object` must be an object.
const Json* json_find(const Json& object, std::string_view key);

// Appends `text` as a JSON string literal, quotes included. Invalid UTF-8 bytes become U+FFFD.
void json_append_string(std::string& out, std::string_view text);

// That literal alone. It is one of TOML and of YAML too.
std::string json_quoted(std::string_view text);

}  // namespace millrace
