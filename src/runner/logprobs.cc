#include "runner/logprobs.h"

#include <cmath>

#include "runner/sampler.h"

namespace millrace {
namespace {

struct LogSoftmax {
  std::span<const float> logits;
  double largest = 0;
  double log_sum = 0;

  double operator()(int32_t id) const {
    CHECK(id >= 0 && static_cast<std::size_t>(id) < logits.size());
    return (static_cast<double>(logits[static_cast<std::size_t>(id)]) - largest) - log_sum;
  }
};

// How many are likelier, and 1; the lower id first among equals, as in TopSelect.
int32_t rank_of(std::span<const float> logits, int32_t token) {
  const float logit = logits[static_cast<std::size_t>(token)];
  int32_t before = 0;
  for (std::size_t id = 0; id < logits.size(); ++id) {
    before += logits[id] > logit || (logits[id] == logit && id < static_cast<std::size_t>(token));
  }
  return before + 1;
}

}  // namespace

Result<wire::TokenLogprobs> token_logprobs(std::span<const float> logits, int32_t token, const SamplingSpec& spec,
                                           TopSelect& select) {
  ASSIGN_OR_RETURN(const int32_t best, greedy_token(logits));
  LogSoftmax logprob{.logits = logits, .largest = logits[static_cast<std::size_t>(best)]};
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x) - logprob.largest);
  logprob.log_sum = std::log(sum);

  wire::TokenLogprobs out;
  out.token = token;
  out.logprob = logprob(token);
  out.rank = rank_of(logits, token);
  if (spec.top_logprobs > 0) {
    for (const int32_t id : select.ranked(logits, spec.top_logprobs)) {
      out.top_ids.push_back(id);
      out.top.push_back(logprob(id));
    }
  }
  for (const int32_t id : spec.logprob_token_ids) out.of_ids.push_back(logprob(id));
  return out;
}

}  // namespace millrace
