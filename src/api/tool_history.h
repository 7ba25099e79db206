// Tool calls and their results in the messages of a chat request, in the form that the model's template wants.
//
// Thread safety: free functions.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "api/fields.h"
#include "base/json.h"
#include "base/status.h"
#include "text/tools/history_form.h"

namespace millrace::api {

// Whether a message has `tool_calls` or a `tool_call_id`.
bool has_tool_history(const Json& messages);

// Checks the calls of one message, `where` by name, and gives them the form: their arguments, which clients send as a
// string of JSON, are an object for most templates. Arguments that are no JSON object stay as they are. `parsed` counts
// those of all messages; kInvalidArgument over its limits.
Status rewrite_tool_history(nlohmann::ordered_json& message, const std::string& where, const ToolHistoryForm& form,
                            ValueCount& parsed);

}  // namespace millrace::api
