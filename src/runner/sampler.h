// Sampler: one row of logits to one token.
//
// The filters follow the order that users of other engines rely on: logits / T, softmax, top_k, top_p, min_p, draw.
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

namespace millrace {

// Below this a temperature means greedy: the lowest id among the largest logits.
inline constexpr double kGreedyTemperature = 1e-6;

class Sampler {
 public:
  explicit Sampler(int32_t vocab_size);

  // `logits` has vocab_size elements; `position` is the place in its sequence of the token being drawn.
  // kInternal: a NaN or +inf logit, or nothing but -inf (single -inf logits are fine: probability 0).
  // kInvalidArgument: a spec out of range (see check_sampling).
  Result<int32_t> sample(std::span<const float> logits, const SamplingSpec& spec, int32_t position);

 private:
  int32_t keep_top_k(std::span<const float> logits, int32_t top_k);
  int32_t keep_top_p(std::span<const float> logits, int32_t limit, double top_p);
  void rank_up_to(std::span<const float> logits, int32_t ranked, int32_t wanted);
  void fill_weights(std::span<const float> logits, float largest, double temperature);
  int32_t draw(int32_t kept, double min_p, double uniform);

  std::vector<int32_t> ids_;     // a permutation of the vocabulary whose first places are the kept ids
  std::vector<double> weights_;  // by id: exp((logit - largest) / T), so the largest is exactly 1
};

// kInvalidArgument with the field, the value seen and the range wanted: temperature finite and >= 0, top_p in (0, 1],
// min_p in [0, 1], top_k -1 or >= 1.
Status check_sampling(const SamplingSpec& spec);

// The lowest id among the largest logits. Errors as Sampler::sample. vocab >= 1.
Result<int32_t> greedy_token(std::span<const float> logits);

}  // namespace millrace
