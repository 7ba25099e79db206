// Payloads of a pipeline in the words of the text endpoints: the prompt that a value holds, and how to go on from it.
//
// Thread safety: free functions.
#pragma once

#include "base/status.h"
#include "payload/value.h"
#include "stages/engine.h"

namespace millrace::api {

// {"text", "add_special_tokens"}, {"messages", ...} or {"ids"}. `chat`: a text is the one message of a conversation.
Result<Prompt> read_prompt(const Value& payload, bool chat);

// `sampling` has the fields of a request to /v1/completions that select how tokens are drawn and when it ends.
Result<GenerateRequest> read_request(const Value& payload, const ModelFacts& facts);

}  // namespace millrace::api
