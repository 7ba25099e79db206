// The `messages` of Ollama's chats as those of a chat: pictures become parts before the text, calls get ids, which this
// dialect has not always, and their results the ids of the calls that they answer.
//
// Thread safety: free functions.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "base/json.h"
#include "base/status.h"
#include "stages/engine.h"

namespace millrace::api {

// Adds `messages` to `chat`, and continue_final_message where the last is the assistant's. What is wrong in a message
// in both dialects, the reader of the chat finds. kInvalidArgument or kUnsupported with the message's name first.
Status translate_ollama_messages(const nlohmann::ordered_json& messages, const ModelFacts& model,
                                 nlohmann::ordered_json& chat);

// The content of a message: the text, or parts with the pictures before it. `where` names the images in errors.
Result<nlohmann::ordered_json> ollama_content(const nlohmann::ordered_json& text, const nlohmann::ordered_json* images,
                                              const std::string& where, const ModelFacts& model);

}  // namespace millrace::api
