#include "runner/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/rng.h"

namespace millrace {
namespace {

// The first guess at how many ranked tokens hold top_p of the mass, and how the guess grows when they do not.
constexpr int32_t kFirstRanked = 64;
constexpr int32_t kRankedGrowth = 4;
// Up to here a heap select beats partitioning the whole vocabulary.
constexpr int32_t kHeapSelectMax = 1024;

// The total order of the filters: larger logits first, lower ids first among equals.
struct RankBefore {
  const float* logits;
  bool operator()(int32_t a, int32_t b) const {
    const float x = logits[a], y = logits[b];
    return x != y ? x > y : a < b;
  }
};

}  // namespace

Status check_sampling(const SamplingSpec& spec) {
  if (!std::isfinite(spec.temperature) || spec.temperature < 0) {
    return invalid_argument("temperature is {}; wanted a finite number >= 0", spec.temperature);
  }
  if (!(spec.top_p > 0 && spec.top_p <= 1)) return invalid_argument("top_p is {}; wanted (0, 1]", spec.top_p);
  if (!(spec.min_p >= 0 && spec.min_p <= 1)) return invalid_argument("min_p is {}; wanted [0, 1]", spec.min_p);
  if (spec.top_k != -1 && spec.top_k < 1) return invalid_argument("top_k is {}; wanted -1 or >= 1", spec.top_k);
  return ok_status();
}

Result<int32_t> greedy_token(std::span<const float> logits) {
  int32_t best = 0;
  bool bad = false;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    bad |= !(logits[i] <= std::numeric_limits<float>::max());  // NaN or +inf
    if (logits[i] > logits[static_cast<std::size_t>(best)]) best = static_cast<int32_t>(i);
  }
  if (bad) {
    const auto at =
        std::find_if(logits.begin(), logits.end(), [](float x) { return !(x <= std::numeric_limits<float>::max()); });
    return internal_error("the logit of token {} is {}; wanted a finite number or -inf", at - logits.begin(), *at);
  }
  if (std::isinf(logits[static_cast<std::size_t>(best)])) {
    return internal_error("all {} logits are -inf; wanted at least one finite", logits.size());
  }
  return best;
}

Sampler::Sampler(int32_t vocab_size)
    : ids_(static_cast<std::size_t>(vocab_size)), weights_(static_cast<std::size_t>(vocab_size)) {}

Result<int32_t> Sampler::sample(std::span<const float> logits, const SamplingSpec& spec, int32_t position) {
  CHECK(logits.size() == ids_.size() && !logits.empty());
  RETURN_IF_ERROR(check_sampling(spec));
  ASSIGN_OR_RETURN(const int32_t best, greedy_token(logits));
  if (spec.temperature < kGreedyTemperature || spec.top_k == 1) return best;

  fill_weights(logits, logits[static_cast<std::size_t>(best)], spec.temperature);
  std::iota(ids_.begin(), ids_.end(), 0);
  int32_t kept = static_cast<int32_t>(ids_.size());
  // top_p ranks its tokens anyway, within the first top_k; alone, top_k needs no ranking, only the set.
  if (spec.top_p < 1) {
    const int32_t limit = spec.top_k > 0 ? std::min(spec.top_k, kept) : kept;
    kept = keep_top_p(logits, limit, spec.top_p);
  } else if (spec.top_k > 0 && spec.top_k < kept) {
    kept = keep_top_k(logits, spec.top_k);
  }
  const PhiloxBlock words = philox(spec.seed, static_cast<uint64_t>(position));
  return draw(kept, spec.min_p, uniform_open(words[0], words[1]));
}

void Sampler::fill_weights(std::span<const float> logits, float largest, double temperature) {
  for (std::size_t i = 0; i < logits.size(); ++i) {
    weights_[i] = std::exp((static_cast<double>(logits[i]) - static_cast<double>(largest)) / temperature);
  }
}

// Brings the ids of rank [ranked, wanted) to their places in ids_; those before `ranked` stand already.
void Sampler::rank_up_to(std::span<const float> logits, int32_t ranked, int32_t wanted) {
  const RankBefore before{logits.data()};
  const auto first = ids_.begin() + ranked, middle = ids_.begin() + wanted;
  if (wanted - ranked <= kHeapSelectMax) {
    std::partial_sort(first, middle, ids_.end(), before);
    return;
  }
  if (middle != ids_.end()) std::nth_element(first, middle, ids_.end(), before);
  std::sort(first, middle, before);
}

int32_t Sampler::keep_top_k(std::span<const float> logits, int32_t top_k) {
  if (top_k <= kHeapSelectMax) {
    rank_up_to(logits, 0, top_k);
  } else {
    std::nth_element(ids_.begin(), ids_.begin() + top_k, ids_.end(), RankBefore{logits.data()});
  }
  return top_k;
}

// Keeps the ranks whose predecessors hold at most top_p of the whole mass: the token that crosses the line stays.
int32_t Sampler::keep_top_p(std::span<const float> logits, int32_t limit, double top_p) {
  const double mass = top_p * std::accumulate(weights_.begin(), weights_.end(), 0.0);
  int32_t ranked = 0;
  double before = 0;
  for (int32_t wanted = std::min(kFirstRanked, limit);; wanted = std::min(wanted * kRankedGrowth, limit)) {
    rank_up_to(logits, ranked, wanted);
    for (; ranked < wanted; ++ranked) {
      if (before > mass) return ranked;
      before += weights_[static_cast<std::size_t>(ids_[static_cast<std::size_t>(ranked)])];
    }
    if (wanted == limit) return limit;
  }
}

int32_t Sampler::draw(int32_t kept, double min_p, double uniform) {
  const auto end = ids_.begin() + kept;
  if (!std::is_sorted(ids_.begin(), end)) std::sort(ids_.begin(), end);
  // The largest weight is 1, so "p < min_p * p_max" is "weight < min_p". Dropped tokens weigh nothing.
  const auto weight = [&](int32_t id) {
    const double w = weights_[static_cast<std::size_t>(id)];
    return w < min_p ? 0.0 : w;
  };
  double total = 0;
  for (auto it = ids_.begin(); it != end; ++it) total += weight(*it);
  const double target = uniform * total;  // uniform < 1; rounding may still bring the product up to `total`
  double sum = 0;
  int32_t last = ids_[0];
  for (auto it = ids_.begin(); it != end; ++it) {
    const double w = weight(*it);
    if (w == 0) continue;
    last = *it;
    sum += w;
    if (sum > target) break;
  }
  return last;
}

}  // namespace millrace
