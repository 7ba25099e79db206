#include "stages/generating/lengths.h"

#include <algorithm>

namespace millrace {

Result<int32_t> resolve_max_tokens(int64_t prompt, std::optional<int32_t> max_tokens, int64_t context) {
  if (prompt == 0) return invalid_argument("the prompt has no tokens; wanted at least 1");
  if (prompt >= context) {
    return error(StatusCode::kTooLarge,
                 "This model's maximum context length is {} tokens. However, the prompt has {} tokens.", context,
                 prompt);
  }
  const int64_t left = context - prompt;
  return static_cast<int32_t>(max_tokens ? std::min<int64_t>(*max_tokens, left) : left);
}

}  // namespace millrace
