// How many tokens a request may generate, by its max_tokens and the model's context.
// Thread safety: a pure function.
#pragma once

#include <cstdint>
#include <optional>

#include "base/status.h"

namespace millrace {

// `prompt`: its number of tokens. `max_tokens` is an upper bound, nullopt: none. A text that reaches the end of the
// context ends there with "length": agents ask for 4096 to 32000 tokens whatever the context is. kInvalidArgument: an
// empty prompt; kTooLarge: the context of `context` tokens has no place behind the prompt.
Result<int32_t> resolve_max_tokens(int64_t prompt, std::optional<int32_t> max_tokens, int64_t context);

}  // namespace millrace
