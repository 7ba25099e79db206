// How many tokens a request may generate, by its own word and the model's context. Nothing is clamped in silence.
// Thread safety: a pure function.
#pragma once

#include <cstdint>
#include <optional>

#include "base/status.h"

namespace millrace {

// `prompt`: its tokens. `max_tokens`: nullopt = to the end of the context. kInvalidArgument: an empty prompt;
// kTooLarge: prompt and answer do not fit a context of `context` tokens.
Result<int32_t> resolve_max_tokens(int64_t prompt, std::optional<int32_t> max_tokens, int64_t context);

}  // namespace millrace
