// The `instructions` and `input` of a request to /v1/responses as the messages of a chat (api/chat_prompt.h):
// instructions and the system and developer messages at the beginning become one system message, the assistant's items
// in a row (reasoning, messages, function calls) one message, function_call_output a message of the role `tool`.
//
// Thread safety: free functions.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "api/media_parts.h"
#include "base/json.h"
#include "base/status.h"

namespace millrace::api {

// Adds messages to `chat`. kInvalidArgument, or kUnsupported of an item or part that is not served, with its name
// first: "input[2].content[0].type is 'input_file'; wanted ...". `media` takes the parts of pictures and audio.
Status translate_input(const Json& body, MediaParts& media, nlohmann::ordered_json& chat);

}  // namespace millrace::api
