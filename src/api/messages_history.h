// The conversation of a request to /v1/messages as the messages of a chat (api/chat_prompt.h): `system` becomes the
// first of them, turns of one role in a row become one, a block tool_result becomes a message of the role `tool`.
//
// Thread safety: free functions.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "api/media_parts.h"
#include "base/json.h"
#include "base/status.h"

namespace millrace::api {

// Adds messages to `chat`, and continue_final_message where the last turn is the assistant's: the answer continues it.
// `ordered`: the body, its keys in the client's sequence. kInvalidArgument, or kUnsupported of a block that is not
// served, with the block's name first: "messages[2].content[0].type is 'document'; wanted ...". `media` takes the
// blocks of pictures.
Status translate_history(const Json& body, const nlohmann::ordered_json& ordered, MediaParts& media,
                         nlohmann::ordered_json& chat);

}  // namespace millrace::api
