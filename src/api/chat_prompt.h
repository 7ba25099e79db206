// The `messages` of a chat request, checked and in the form that chat templates expect.
// Thread safety: free functions.
#pragma once

#include <string>

#include "base/json.h"
#include "stages/engine.h"

namespace millrace::api {

// Reads messages, add_generation_prompt, continue_final_message and chat_template_kwargs from a parsed `body`; `text`
// is the same body as the client wrote it, from which the templates get their values with the keys in the client's
// order. kInvalidArgument names the message: "messages[2].role is 'robot'; wanted one of ...".
Result<ChatPrompt> read_chat_prompt(const Json& body, const std::string& text);

}  // namespace millrace::api
