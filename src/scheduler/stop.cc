#include "scheduler/stop.h"

#include <algorithm>

namespace millrace {

bool stops(const wire::SamplingParams& sampling, std::span<const int32_t> eos_token_ids, int32_t token) {
  const auto holds = [token](std::span<const int32_t> ids) {
    return std::find(ids.begin(), ids.end(), token) != ids.end();
  };
  return holds(sampling.stop_token_ids) || (!sampling.ignore_eos && holds(eos_token_ids));
}

std::optional<wire::Finish> stop_after(const Sequence& sequence, std::span<const int32_t> eos_token_ids,
                                       int32_t context_length) {
  const wire::SamplingParams& sampling = sequence.sampling;
  CHECK(sequence.known() > 0);
  const int32_t token = sequence.tokens[static_cast<std::size_t>(sequence.known()) - 1];
  wire::Finish finish;
  if (stops(sampling, eos_token_ids, token)) {
    finish.reason = wire::FinishReason::kStop;
    finish.matched_token = token;
    return finish;
  }
  if (sequence.generated() >= sampling.max_tokens || sequence.known() >= context_length) {
    finish.reason = wire::FinishReason::kLength;
    return finish;
  }
  return std::nullopt;
}

std::vector<int32_t> stopping_tokens(const wire::SamplingParams& sampling, std::span<const int32_t> eos_token_ids,
                                     int32_t vocab_size) {
  std::vector<int32_t> tokens = sampling.stop_token_ids;
  if (!sampling.ignore_eos) tokens.insert(tokens.end(), eos_token_ids.begin(), eos_token_ids.end());
  std::erase_if(tokens, [&](int32_t token) { return token < 0 || token >= vocab_size; });
  std::ranges::sort(tokens);
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  return tokens;
}

wire::Finish error_finish(const Status& status) {
  wire::Finish finish;
  finish.reason = wire::FinishReason::kError;
  finish.code = status.code();
  finish.message = status.message();
  return finish;
}

}  // namespace millrace
