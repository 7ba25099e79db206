// The structural tags of a request, in the two forms that clients write them, as the source that grammar/ reads:
//
//   {"structures": [{"begin", "schema", "end"}], "triggers": [...]}                      SGLang, XGrammar's first form
//   {"format": {"type": "triggered_tags", "triggers": [...],
//               "tags": [{"begin", "content": {"type": "json_schema", "json_schema"}, "end"}]}}    XGrammar's second
//
// Thread safety: free function.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "base/status.h"

namespace millrace::api {

// kInvalidArgument, kUnsupported: `name`, the path in it, and what stands there.
Result<std::string> structural_tag_source(const nlohmann::ordered_json& given, const std::string& name);

}  // namespace millrace::api
