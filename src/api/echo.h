// The prompt's text before the generated one: a prompt of token ids is first turned into text, by the engine's
// tokenizer stage, before the request starts.
// Thread safety: any thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "api/reply.h"

namespace millrace::api {

// reply->start(requests, names, texts of the prompts), now or when the last of the texts is there; an error of the
// tokenizer stage is answered instead. Texts and ids only.
void start_with_echo(ApiContext& context, const http::ResponderPtr& responder, std::shared_ptr<Reply> reply,
                     std::size_t choices_per_prompt, bool skip_special_tokens, const std::vector<Prompt>& prompts,
                     std::vector<GenerateRequest> requests, std::vector<LiveRequests::Name> names);

}  // namespace millrace::api
