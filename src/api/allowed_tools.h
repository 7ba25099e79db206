// tool_choice of OpenAI's type allowed_tools: of the tools of a request, those that may be called now.
//
// Thread safety: free functions.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "base/json.h"
#include "base/status.h"

namespace millrace::api {

// Keeps of chat["tools"] those that `allowed`, {"mode", "tools"}, names, and makes its mode chat["tool_choice"].
// `where`: the name of `allowed`, for errors. `member`: of an entry of its tools, the object that has the name; null:
// the entry has it.
Status keep_allowed_tools(const Json& allowed, const std::string& where, const char* member,
                          nlohmann::ordered_json& chat);

// A chat's body with such a choice as one without, which has those tools alone. nullopt: it has another choice, or
// none. `text`: `body` as it came.
Result<std::optional<std::string>> resolve_allowed_tools(const Json& body, const std::string& text);

}  // namespace millrace::api
