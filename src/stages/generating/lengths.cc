#include "stages/generating/lengths.h"

namespace millrace {

Result<int32_t> resolve_max_tokens(int64_t prompt, std::optional<int32_t> max_tokens, int64_t context) {
  if (prompt == 0) return invalid_argument("the prompt has no tokens; wanted at least 1");
  if (prompt >= context) {
    return error(StatusCode::kTooLarge,
                 "This model's maximum context length is {} tokens. However, the prompt has {} tokens.", context,
                 prompt);
  }
  if (max_tokens && prompt + *max_tokens > context) {
    return error(
        StatusCode::kTooLarge,
        "This model's maximum context length is {} tokens. However, you requested {} tokens ({} in the prompt, {} "
        "for the completion).",
        context, prompt + *max_tokens, prompt, *max_tokens);
  }
  return max_tokens.value_or(static_cast<int32_t>(context - prompt));
}

}  // namespace millrace
