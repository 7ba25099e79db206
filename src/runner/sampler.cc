#include "runner/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/rng.h"

namespace millrace {
namespace {

// The likeliest tokens that are ranked at once: they nearly always hold top_p of the mass.
constexpr int32_t kFirstRanked = 64;
// Where they do not, tokens are sorted into buckets by how far they lie under the largest logit: equal steps up to
// kBucketSpan times the temperature (a weight of e^-32), the last bucket holds the rest.
constexpr std::size_t kBuckets = 2048;
constexpr double kBucketSpan = 32;
// Sums in bucket order and in rank order differ by rounding; more than this never.
constexpr double kSumSlack = 1e-9;

// The place in `weights` where the running sum passes uniform * sum. Weights under `min_p` count as 0: the largest
// weight is 1, so "p < min_p * p_max" is "weight < min_p".
std::size_t draw(std::span<const double> weights, double min_p, double uniform) {
  const auto kept = [min_p](double w) { return w < min_p ? 0.0 : w; };
  double total = 0;
  for (const double w : weights) total += kept(w);
  const double target = uniform * total;  // uniform < 1; rounding may still bring the product up to `total`
  double sum = 0;
  std::size_t last = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const double w = kept(weights[i]);
    if (w == 0) continue;
    last = i;
    sum += w;
    if (sum > target) break;
  }
  return last;
}

}  // namespace

// Sixteen logits are compared with the best so far at once; only where one of them is larger, one by one.
Result<int32_t> greedy_token(std::span<const float> logits) {
  constexpr std::size_t kBlock = 16;
  constexpr float kLargest = std::numeric_limits<float>::max();
  int32_t best = 0;
  float value = -std::numeric_limits<float>::infinity();
  int bad = 0;
  const auto offer = [&](std::size_t i) {
    bad |= static_cast<int>(!(logits[i] <= kLargest));  // NaN or +inf
    if (!(logits[i] > value)) return;
    best = static_cast<int32_t>(i);
    value = logits[i];
  };
  std::size_t i = 0;
  for (; i + kBlock <= logits.size(); i += kBlock) {
    int look = 0;
    for (std::size_t j = 0; j < kBlock; ++j) {
      look |= static_cast<int>(logits[i + j] > value) | static_cast<int>(!(logits[i + j] <= kLargest));
    }
    for (std::size_t j = 0; look && j < kBlock; ++j) offer(i + j);
  }
  for (; i < logits.size(); ++i) offer(i);
  if (bad) {
    const auto at = std::find_if(logits.begin(), logits.end(), [](float x) { return !(x <= kLargest); });
    return internal_error("the logit of token {} is {}; wanted a finite number or -inf", at - logits.begin(), *at);
  }
  if (std::isinf(logits[static_cast<std::size_t>(best)])) {
    return internal_error("all {} logits are -inf; wanted at least one finite", logits.size());
  }
  return best;
}

Sampler::Sampler(int32_t vocab_size)
    : select_(vocab_size),
      kept_(static_cast<std::size_t>(vocab_size)),
      weights_(static_cast<std::size_t>(vocab_size)) {}

Result<int32_t> Sampler::sample(std::span<const float> logits, const SamplingSpec& spec, int32_t position) {
  CHECK(logits.size() == weights_.size() && !logits.empty());
  const auto vocab = static_cast<int32_t>(logits.size());
  RETURN_IF_ERROR(check_sampling(spec, vocab));
  ASSIGN_OR_RETURN(const int32_t best, greedy_token(logits));
  if (spec.temperature < kGreedyTemperature || spec.top_k == 1) return best;

  const float largest = logits[static_cast<std::size_t>(best)];
  const int32_t limit = spec.top_k > 0 ? std::min(spec.top_k, vocab) : vocab;
  const PhiloxBlock words = philox(spec.seed, static_cast<uint64_t>(position));
  const double uniform = uniform_open(words[0], words[1]);
  if (spec.top_p == 1 && limit == vocab) {
    weigh_all(logits, largest, spec.temperature);
    return static_cast<int32_t>(draw(weights_, spec.min_p, uniform));
  }
  std::span<const int32_t> kept;
  if (spec.top_p < 1) {
    weigh_all(logits, largest, spec.temperature);  // top_p looks at the mass of the whole vocabulary
    kept = keep_top_p(logits, limit, spec.top_p, spec.temperature);
  } else {
    kept = select_.by_id(logits, limit);
  }
  weigh(logits, kept, largest, spec.temperature);
  return kept[draw({weights_.data(), kept.size()}, spec.min_p, uniform)];
}

void Sampler::weigh_all(std::span<const float> logits, float largest, double temperature) {
  for (std::size_t i = 0; i < logits.size(); ++i) {
    weights_[i] = std::exp((static_cast<double>(logits[i]) - static_cast<double>(largest)) / temperature);
  }
}

void Sampler::weigh(std::span<const float> logits, std::span<const int32_t> ids, float largest, double temperature) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const double logit = logits[static_cast<std::size_t>(ids[i])];
    weights_[i] = std::exp((logit - static_cast<double>(largest)) / temperature);
  }
}

// The first `count` of kept_ are ranked; how many of them have predecessors that hold at most `mass`. The token that
// crosses the line stays. `crossed`: whether one of them does.
std::size_t Sampler::cut_at_mass(std::size_t count, double mass, bool& crossed) const {
  double before = 0;
  std::size_t kept = 0;
  for (; kept < count && before <= mass; ++kept) before += weights_[static_cast<std::size_t>(kept_[kept])];
  crossed = before > mass;
  return kept;
}

// Keeps the ranks whose predecessors hold at most top_p of the whole mass, `limit` ranks at most. weights_ holds the
// weights of all ids.
std::span<const int32_t> Sampler::keep_top_p(std::span<const float> logits, int32_t limit, double top_p,
                                             double temperature) {
  const double mass = top_p * std::accumulate(weights_.begin(), weights_.end(), 0.0);
  const std::span<const int32_t> first = select_.ranked(logits, std::min(kFirstRanked, limit));
  std::copy(first.begin(), first.end(), kept_.begin());
  bool crossed = false;
  std::size_t kept = cut_at_mass(first.size(), mass, crossed);
  if (!crossed && static_cast<int32_t>(first.size()) < limit) {
    const std::size_t ranked = rank_mass(logits, limit, mass, logits[static_cast<std::size_t>(first[0])], temperature);
    kept = cut_at_mass(std::min(ranked, static_cast<std::size_t>(limit)), mass, crossed);
  }
  std::sort(kept_.begin(), kept_.begin() + static_cast<std::ptrdiff_t>(kept));
  return {kept_.data(), kept};
}

// Ranks as many of the likeliest tokens in kept_ as hold more than `mass`, or `limit` of them, or all; and some more,
// since whole buckets are taken. Only those tokens are sorted. Returns how many.
std::size_t Sampler::rank_mass(std::span<const float> logits, int32_t limit, double mass, float largest,
                               double temperature) {
  const double scale = kBuckets / (kBucketSpan * temperature);
  // Larger logits never come into a later bucket: every step is monotonic.
  const auto bucket_of = [&](std::size_t id) {
    const double place = (static_cast<double>(largest) - static_cast<double>(logits[id])) * scale;
    // "Not smaller" takes NaN to the last bucket too: -inf logits at a temperature near the end of the numbers.
    return place < static_cast<double>(kBuckets - 1) ? static_cast<std::size_t>(place) : kBuckets - 1;
  };
  std::array<double, kBuckets> masses{};
  std::array<int32_t, kBuckets> counts{};
  for (std::size_t id = 0; id < logits.size(); ++id) {
    const std::size_t bucket = bucket_of(id);
    masses[bucket] += weights_[id];
    ++counts[bucket];
  }
  std::size_t last = 0;
  double sum = masses[0];
  for (int64_t count = counts[0]; last + 1 < kBuckets && count < limit && sum <= mass * (1 + kSumSlack);) {
    ++last;
    sum += masses[last];
    count += counts[last];
  }
  std::size_t ranked = 0;
  for (std::size_t id = 0; id < logits.size(); ++id) {
    if (bucket_of(id) <= last) kept_[ranked++] = static_cast<int32_t>(id);
  }
  std::sort(kept_.begin(), kept_.begin() + static_cast<std::ptrdiff_t>(ranked), RankBefore{logits.data()});
  return ranked;
}

}  // namespace millrace
