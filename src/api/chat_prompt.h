// The `messages` of a chat request, checked and in the form that chat templates expect.
// Thread safety: free functions.
#pragma once

#include <string>
#include <string_view>

#include "api/media_parts.h"
#include "api/spoken_turns.h"
#include "base/json.h"
#include "stages/engine.h"
#include "text/tools/history_form.h"

namespace millrace::api {

// Reads messages, tools, add_generation_prompt, continue_final_message and the template's variables from a parsed
// `body`; `text` is the same body as the client wrote it, from which the templates get their values with the keys in
// the client's order. `form`: of the history. kInvalidArgument names the message: "messages[2].role is
// 'robot'; wanted one of ...".
// `media`: takes the pictures and audios out of the parts, or took them in a translation from another dialect; the
// prompt gets them; kUnavailable where some must be fetched first (api/media_urls.h), which is checked last. `spoken`:
// where the `audio` of an earlier turn is found by its id; null: there is none.
Result<ChatPrompt> read_chat_prompt(const Json& body, const std::string& text, MediaParts& media,
                                    const ToolHistoryForm& form = {}, const SpokenTurns* spoken = nullptr);

// kInvalidArgument: the effort of reasoning in the field `name` is none of OpenAI's words.
Status check_effort(std::string_view effort, std::string_view name);

// Where the output cannot begin with reasoning: the template's variable enable_thinking is false, unless the request
// sets it.
void close_reasoning(const Json& body, ChatPrompt& prompt);

}  // namespace millrace::api
