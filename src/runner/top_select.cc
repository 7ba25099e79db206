#include "runner/top_select.h"

#include <algorithm>
#include <numeric>

#include "base/status.h"

namespace millrace {
namespace {

// Up to here one pass with a heap of the best so far beats partitioning the whole vocabulary.
constexpr int32_t kHeapSelectMax = 1024;
// So many logits are compared with the heap's worst at once: most blocks hold nothing for it.
constexpr std::size_t kBlock = 16;

bool any_above(const float* logits, float threshold) {
  int above = 0;
  for (std::size_t i = 0; i < kBlock; ++i) above |= static_cast<int>(logits[i] > threshold);
  return above != 0;
}

}  // namespace

TopSelect::TopSelect(int32_t vocab_size) : ids_(static_cast<std::size_t>(vocab_size)) {}

// One pass in id order over a heap whose top is the worst of the best k. An equal logit further on has a higher id and
// ranks behind, so only a larger logit gets in.
void TopSelect::select_by_heap(std::span<const float> logits, int32_t k) {
  const RankBefore before{logits.data()};
  const auto first = ids_.begin(), last = first + k;
  std::iota(first, last, 0);
  std::make_heap(first, last, before);
  float worst = logits[static_cast<std::size_t>(*first)];
  const auto offer = [&](std::size_t i) {
    if (!(logits[i] > worst)) return;
    std::pop_heap(first, last, before);
    *(last - 1) = static_cast<int32_t>(i);
    std::push_heap(first, last, before);
    worst = logits[static_cast<std::size_t>(*first)];
  };
  std::size_t i = static_cast<std::size_t>(k);
  for (; i + kBlock <= logits.size(); i += kBlock) {
    if (!any_above(logits.data() + i, worst)) continue;
    for (std::size_t j = i; j < i + kBlock; ++j) offer(j);
  }
  for (; i < logits.size(); ++i) offer(i);
}

void TopSelect::partition(std::span<const float> logits, int32_t k) {
  std::iota(ids_.begin(), ids_.end(), 0);
  if (static_cast<std::size_t>(k) < ids_.size()) {
    std::nth_element(ids_.begin(), ids_.begin() + k, ids_.end(), RankBefore{logits.data()});
  }
}

std::span<const int32_t> TopSelect::ranked(std::span<const float> logits, int32_t k) {
  CHECK(k >= 1 && logits.size() == ids_.size());
  k = std::min(k, static_cast<int32_t>(ids_.size()));
  const RankBefore before{logits.data()};
  if (k <= kHeapSelectMax) {
    select_by_heap(logits, k);
    std::sort_heap(ids_.begin(), ids_.begin() + k, before);
  } else {
    partition(logits, k);
    std::sort(ids_.begin(), ids_.begin() + k, before);
  }
  return {ids_.data(), static_cast<std::size_t>(k)};
}

std::span<const int32_t> TopSelect::by_id(std::span<const float> logits, int32_t k) {
  CHECK(k >= 1 && logits.size() == ids_.size());
  k = std::min(k, static_cast<int32_t>(ids_.size()));
  if (k <= kHeapSelectMax) {
    select_by_heap(logits, k);
  } else {
    partition(logits, k);
  }
  std::sort(ids_.begin(), ids_.begin() + k);
  return {ids_.data(), static_cast<std::size_t>(k)};
}

}  // namespace millrace
