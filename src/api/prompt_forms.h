// Prompts in another form than they came in, from the engine's tokenizer, before the request that generates starts:
// texts, which an answer repeats (echo), and token ids, which it shows (return_token_ids) or of which the last ones
// count alone (truncate_prompt_tokens).
//
// `done` gets them in the order of the prompts, on the io thread; an error of the tokenizer is answered instead.
// Thread safety: any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "api/gather.h"
#include "api/routes.h"

namespace millrace::api {

// Texts and ids only.
void with_prompt_texts(ApiContext& context, const http::ResponderPtr& responder, const std::vector<Prompt>& prompts,
                       bool skip_special_tokens, Gather<std::string>::Done done);

// Of each prompt the `last` ids; nullopt: all.
using PromptIds = std::vector<std::vector<int32_t>>;
void with_prompt_ids(ApiContext& context, const http::ResponderPtr& responder, std::vector<Prompt> prompts,
                     std::optional<int64_t> last, Gather<std::vector<int32_t>>::Done done);
std::vector<Prompt> prompts_of(const PromptIds& ids);

}  // namespace millrace::api
