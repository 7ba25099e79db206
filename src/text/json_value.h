// JSON to template values, everything in it untrusted.
//
// Thread safety: free functions without state.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "base/json.h"
#include "base/status.h"
#include "text/jinja/value.h"

namespace millrace {

// Keys of `Json` come sorted, those of the others in the order written. Deeper than jinja::kMaxValueDepth: kTooLarge.
Result<jinja::Value> json_to_value(const Json& json);
Result<jinja::Value> json_to_value(const nlohmann::ordered_json& json);

// Parses without building a JSON tree first. A key that stands twice keeps its last value, as in Python.
Result<jinja::Value> parse_json_value(std::string_view text, int max_depth);

}  // namespace millrace
