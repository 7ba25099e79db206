// Sampler: one row of logits to one token.
//
// The whole order of operations on a row, most of which users of other engines rely on:
//   1. logprobs look at the model's own logits, before anything below (runner/logprobs.h)
//   2. frequency and presence penalties, bans, repetition penalty, biases (runner/logit_edits.h)
//   3. / T, softmax, top_k, top_p, min_p, draw: this class. Greedy instead where T is (almost) 0 or top_k is 1.
//
// top_p and min_p look at the probabilities before any filter (nothing is renormalized in between), so each filter
// keeps a prefix of the same ranking (larger logit first, lower id first among equals) and the shortest prefix wins.
// The draw inverts the cumulative weights of the kept tokens in id order, with one uniform number made from (seed,
// position) alone: a token never depends on what else is in the batch.
//
// Owned by the model runner's compute thread: the scratch arrays make a Sampler single-threaded. No allocation after
// construction.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "runner/runner.h"
#include "runner/top_select.h"

namespace millrace {

// Below this a temperature means greedy: the lowest id among the largest logits.
inline constexpr double kGreedyTemperature = 1e-6;

class Sampler {
 public:
  explicit Sampler(int32_t vocab_size);

  // Step 3. `logits` has vocab_size elements; `position` is the place in its sequence of the token being drawn.
  // kInternal: a NaN or +inf logit, or nothing but -inf (single -inf logits are fine: probability 0).
  // kInvalidArgument: a spec out of range (see check_sampling).
  Result<int32_t> sample(std::span<const float> logits, const SamplingSpec& spec, int32_t position);

 private:
  void weigh(std::span<const float> logits, std::span<const int32_t> ids, float largest, double temperature);
  void weigh_all(std::span<const float> logits, float largest, double temperature);
  std::span<const int32_t> keep_top_p(std::span<const float> logits, int32_t limit, double top_p, double temperature);
  std::size_t cut_at_mass(std::size_t count, double mass, bool& crossed) const;
  std::size_t rank_mass(std::span<const float> logits, int32_t limit, double mass, float largest, double temperature);

  TopSelect select_;
  std::vector<int32_t> kept_;    // ids that top_p keeps, first ranked, then in increasing order
  std::vector<double> weights_;  // of all ids, or of the kept ones: exp((logit - largest) / T); the largest is 1
};

// kInvalidArgument with the field, the value seen and the range wanted:
//   temperature finite and >= 0, top_p in (0, 1], min_p in [0, 1], top_k -1 or >= 1
//   frequency_penalty and presence_penalty in [-2, 2], repetition_penalty in (0, 2]
//   logit_bias: at most wire::kMaxLogitBiases, each in [-100, 100]; top_logprobs -1 to wire::kMaxTopLogprobs;
//   logprob_token_ids: at most wire::kMaxLogprobTokenIds; all ids, those of `banned` too, in [0, vocab_size)
// NaN and infinities are outside every range.
Status check_sampling(const SamplingSpec& spec, int32_t vocab_size);

// The lowest id among the largest logits. Errors as Sampler::sample. vocab >= 1.
Result<int32_t> greedy_token(std::span<const float> logits);

}  // namespace millrace
