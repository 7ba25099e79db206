// Logprobs: how likely the model held one token at its place, and its rivals there: log softmax of the model's own
// logits, before penalties, biases and temperature (wire::TokenLogprobs).
//
// log softmax(x)_i = (x_i - m) - log(sum_j exp(x_j - m)), m the largest logit: everything in f64, the sum in id order.
// A logit of -inf has the logprob -inf.
// Thread safety: pure functions, but for the scratch of `select`.
#pragma once

#include <cstdint>
#include <span>

#include "base/status.h"
#include "runner/runner.h"
#include "runner/top_select.h"

namespace millrace {

// The logprob and the rank of `token`, the logprobs of the spec.top_logprobs likeliest tokens (all, where the
// vocabulary has fewer) and of spec.logprob_token_ids. Ids are inside the vocabulary (CHECK). kInternal for broken
// logits, as greedy_token.
Result<wire::TokenLogprobs> token_logprobs(std::span<const float> logits, int32_t token, const SamplingSpec& spec,
                                           TopSelect& select);

}  // namespace millrace
