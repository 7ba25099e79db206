// Errors as Anthropic's clients expect them: {"type": "error", "error": {"type", "message"}, "request_id"}.
// Thread safety: free functions.
#pragma once

#include <string>
#include <string_view>

#include "api/error.h"
#include "http/message.h"

namespace millrace::api {

// The header field that these clients read; every answer of the server has the same in x-request-id.
inline constexpr std::string_view kRequestIdField = "request-id";

// The JSON object.
std::string render_messages_error(const ApiError& error, std::string_view request_id);
// The same with its status, Retry-After where trying again makes sense, and kRequestIdField.
http::Response messages_error_response(const ApiError& error, std::string_view request_id);

}  // namespace millrace::api
