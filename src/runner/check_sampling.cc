#include <cmath>

#include "runner/sampler.h"
#include "wire/limits.h"

namespace millrace {
namespace {

constexpr double kMaxPenalty = 2;
constexpr double kMaxBias = 100;

Status check_id(const char* field, int32_t id, int32_t vocab_size) {
  if (id >= 0 && id < vocab_size) return ok_status();
  return invalid_argument("{} names the token {}; wanted [0, {})", field, id, vocab_size);
}

Status check_count(const char* field, std::size_t count, std::size_t limit) {
  if (count <= limit) return ok_status();
  return invalid_argument("{} has {} entries; wanted at most {}", field, count, limit);
}

// Each range is tested as !(low <= x && x <= high), so that NaN fails.
Status check_filters(const SamplingSpec& spec) {
  if (!(std::isfinite(spec.temperature) && spec.temperature >= 0)) {
    return invalid_argument("temperature is {}; wanted a finite number >= 0", spec.temperature);
  }
  if (!(spec.top_p > 0 && spec.top_p <= 1)) return invalid_argument("top_p is {}; wanted (0, 1]", spec.top_p);
  if (!(spec.min_p >= 0 && spec.min_p <= 1)) return invalid_argument("min_p is {}; wanted [0, 1]", spec.min_p);
  if (spec.top_k != -1 && spec.top_k < 1) return invalid_argument("top_k is {}; wanted -1 or >= 1", spec.top_k);
  return ok_status();
}

Status check_penalties(const SamplingSpec& spec) {
  if (!(std::abs(spec.frequency_penalty) <= kMaxPenalty)) {
    return invalid_argument("frequency_penalty is {}; wanted [-2, 2]", spec.frequency_penalty);
  }
  if (!(std::abs(spec.presence_penalty) <= kMaxPenalty)) {
    return invalid_argument("presence_penalty is {}; wanted [-2, 2]", spec.presence_penalty);
  }
  if (!(spec.repetition_penalty > 0 && spec.repetition_penalty <= 2)) {
    return invalid_argument("repetition_penalty is {}; wanted (0, 2]", spec.repetition_penalty);
  }
  return ok_status();
}

Status check_biases(const SamplingSpec& spec, int32_t vocab_size) {
  RETURN_IF_ERROR(check_count("logit_bias", spec.logit_bias.size(), wire::kMaxLogitBiases));
  for (const wire::LogitBias& bias : spec.logit_bias) {
    RETURN_IF_ERROR(check_id("logit_bias", bias.token, vocab_size));
    if (!(std::abs(bias.bias) <= kMaxBias)) {
      return invalid_argument("logit_bias of token {} is {}; wanted [-100, 100]", bias.token, bias.bias);
    }
  }
  for (const int32_t id : spec.banned) RETURN_IF_ERROR(check_id("banned", id, vocab_size));
  return ok_status();
}

Status check_logprobs(const SamplingSpec& spec, int32_t vocab_size) {
  if (spec.top_logprobs < -1 || spec.top_logprobs > static_cast<int32_t>(wire::kMaxTopLogprobs)) {
    return invalid_argument("top_logprobs is {}; wanted -1 to {}", spec.top_logprobs, wire::kMaxTopLogprobs);
  }
  RETURN_IF_ERROR(check_count("logprob_token_ids", spec.logprob_token_ids.size(), wire::kMaxLogprobTokenIds));
  for (const int32_t id : spec.logprob_token_ids) RETURN_IF_ERROR(check_id("logprob_token_ids", id, vocab_size));
  return ok_status();
}

}  // namespace

Status check_sampling(const SamplingSpec& spec, int32_t vocab_size) {
  RETURN_IF_ERROR(check_filters(spec));
  RETURN_IF_ERROR(check_penalties(spec));
  RETURN_IF_ERROR(check_biases(spec, vocab_size));
  return check_logprobs(spec, vocab_size);
}

}  // namespace millrace
