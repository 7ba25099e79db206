// Small readers for the component objects of a tokenizer.json ({"type": "Split", ...}): like json_read, but for
// required members, with the wanted kind in the error.
//
// Thread safety: free functions without state.
#pragma once

#include <string>

#include "base/json.h"
#include "base/status.h"

namespace millrace {

// The "type" of a component, which must be an object.
Result<std::string> component_type(const Json& component);
Result<std::string> required_string(const Json& object, std::string_view key);
Result<bool> required_bool(const Json& object, std::string_view key);
// A string of exactly one character, such as Metaspace's "replacement".
Result<std::string> required_character(const Json& object, std::string_view key);
// {"String": "..."} or {"Regex": "..."}.
struct PatternText {
  std::string text;
  bool is_regex = false;
};
Result<PatternText> required_pattern(const Json& object, std::string_view key);
// The member `key` as an array.
Result<const Json*> required_array(const Json& object, std::string_view key);

}  // namespace millrace
