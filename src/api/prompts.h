// The `prompt` of completions and the `input` of embeddings: a text, token ids, or an array of either.
// Thread safety: free functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "stages/engine.h"

namespace millrace::api {

// 1 to `most` prompts of the field `key`, texts with the tokenizer's special tokens unless `add_special_tokens` is
// false. Token ids must lie in [0, vocab_size). kInvalidArgument names the place: "prompt[1] is ...".
Result<std::vector<Prompt>> read_prompts(const Json& body, std::string_view key, std::size_t most, int32_t vocab_size);

// An array of ids; `name` stands in messages.
Result<std::vector<int32_t>> read_ids(const Json& array, const std::string& name, int32_t vocab_size);

}  // namespace millrace::api
