// Values of pipelines as JSON and back, at the border where clients speak JSON.
//
// null, booleans, integers, numbers, strings, arrays and objects are themselves. What JSON does not have is an object
// of one member:  {"$bytes": "base64"}   {"$tensor": {"dtype": "F32", "shape": [2, 3], "base64": "..."}}
// (little-endian, row-major)   {"$number": "nan" | "inf" | "-inf"}. A client's own object with such a member and
// nothing else is refused where it does not fit.
//
// Thread safety: free functions without state.
#pragma once

#include <string>

#include "base/json.h"
#include "base/status.h"
#include "payload/value.h"

namespace millrace::api {

// kInvalidArgument names the place: "inputs.image.$tensor.shape ...". `json` was bounded by parse_body.
Result<Value> value_from_json(const Json& json, const std::string& where);
void append_value(std::string& out, const Value& value);

}  // namespace millrace::api
