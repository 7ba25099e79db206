// Which parameters of a request's functions are texts, and which are none. A value of Qwen3-Coder's calls may read as
// JSON and be a text too, "12345" as a postal code, so the function's schema decides which it is.
//
// Thread safety: free function.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "base/status.h"

namespace millrace::api {

// Of the `tools` of a request, which read_tools() has checked: wire::text_parameter() of each that may be a string, or
// a string and null, and nothing else; and of each that is no string, but may be a boolean, null, an object or an
// array. kInvalidArgument: over wire::kMaxTextParameters.
Result<std::vector<std::string>> find_text_parameters(const Json& tools);

}  // namespace millrace::api
