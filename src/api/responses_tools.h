// `tools` and `tool_choice` of /v1/responses as the fields of a chat (api/tool_fields.h).
//
// Thread safety: free functions.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "base/json.h"
#include "base/status.h"

namespace millrace::api {

// Adds tools, tool_choice and parallel_tool_calls to `chat`. `ordered`: the body, its keys in the client's sequence. Of
// allowed_tools, only these are added. kUnsupported of tools that are no functions, by their types.
Status translate_response_tools(const Json& body, const nlohmann::ordered_json& ordered, nlohmann::ordered_json& chat);

}  // namespace millrace::api
