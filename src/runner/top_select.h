// TopSelect: the k first tokens of a row of logits, ranked: larger logits first, lower ids first among equals. That
// total order is the one of every filter of the sampler and of the likeliest tokens of logprobs.
//
// Owner: one worker of the runner's compute pool. Thread safety: none; the returned span lives until the next call.
// Invariants: no NaN in a row (greedy_token refuses such rows first); the result depends on the row alone.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace millrace {

struct RankBefore {
  const float* logits;
  bool operator()(int32_t a, int32_t b) const {
    const float x = logits[a], y = logits[b];
    return x != y ? x > y : a < b;
  }
};

class TopSelect {
 public:
  explicit TopSelect(int32_t vocab_size);

  // The ids of the `k` first tokens in the order of RankBefore; 1 <= k, all of them where k is larger than the row.
  std::span<const int32_t> ranked(std::span<const float> logits, int32_t k);
  // The same ids in increasing order.
  std::span<const int32_t> by_id(std::span<const float> logits, int32_t k);

 private:
  void select_by_heap(std::span<const float> logits, int32_t k);
  void partition(std::span<const float> logits, int32_t k);

  std::vector<int32_t> ids_;  // the selected ids stand first
};

}  // namespace millrace
