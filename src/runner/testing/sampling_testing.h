// For tests: the sampler by the book (full sort, doubles, no scratch) and Pearson's test of draws against it. Included
// by *_test.cc only.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "runner/runner.h"

namespace millrace {

inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

inline SamplingSpec spec_of(double temperature, int32_t top_k, double top_p, double min_p, uint64_t seed = 1) {
  SamplingSpec spec;
  spec.temperature = temperature;
  spec.top_k = top_k;
  spec.top_p = top_p;
  spec.min_p = min_p;
  spec.seed = seed;
  return spec;
}

// The probability of each token after all filters, by the book: softmax(logits / T), rank, drop ranks >= top_k, drop
// where the mass before the token exceeds top_p, drop p < min_p * p_max.
inline std::vector<double> naive_probabilities(const std::vector<float>& logits, const SamplingSpec& spec) {
  const std::size_t n = logits.size();
  const double largest = *std::max_element(logits.begin(), logits.end());
  std::vector<double> p(n);
  for (std::size_t i = 0; i < n; ++i) p[i] = std::exp((double{logits[i]} - largest) / spec.temperature);
  const double total = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& x : p) x /= total;
  std::vector<std::size_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return logits[a] > logits[b]; });
  std::vector<double> kept(n, 0.0);
  double before = 0;
  for (std::size_t rank = 0; rank < n; ++rank) {
    const double x = p[order[rank]];
    const bool drop = (spec.top_k > 0 && rank >= static_cast<std::size_t>(spec.top_k)) || before > spec.top_p ||
                      x < spec.min_p * p[order[0]];
    if (!drop) kept[order[rank]] = x;
    before += x;
  }
  const double mass = std::accumulate(kept.begin(), kept.end(), 0.0);
  for (double& x : kept) x /= mass;
  return kept;
}

// Pearson's statistic stays below the 1 - 1e-6 quantile of its distribution; approximated by Wilson and Hilferty
// (PNAS 17, 1931): df * (1 - 2/(9 df) + z sqrt(2/(9 df)))^3 with z = 4.753.
inline double chi_square_limit(double df) {
  const double a = 2 / (9 * df);
  return df * std::pow(1 - a + 4.753 * std::sqrt(a), 3);
}

// `seen` draws of each token against the probabilities `p`: a token of probability 0 was never drawn, and the statistic
// is under the limit. Cells that expect fewer than 5 draws are pooled (Cochran, Biometrics 10, 1954).
inline void expect_fits(const std::vector<int>& seen, const std::vector<double>& p) {
  const double draws = std::accumulate(seen.begin(), seen.end(), 0.0);
  double statistic = 0, df = -1, pooled_seen = 0, pooled_expected = 0;
  const auto add = [&](double found, double expected) {
    statistic += (found - expected) * (found - expected) / expected;
    df += 1;
  };
  for (std::size_t i = 0; i < p.size(); ++i) {
    EXPECT_TRUE(p[i] > 0 || seen[i] == 0) << "token " << i << " cannot be drawn";
    if (p[i] * draws >= 5) {
      add(seen[i], p[i] * draws);
    } else {
      pooled_seen += seen[i];
      pooled_expected += p[i] * draws;
    }
  }
  if (pooled_expected >= 5) add(pooled_seen, pooled_expected);
  ASSERT_GE(df, 1) << "the test wants at least two cells";
  EXPECT_LT(statistic, chi_square_limit(df)) << "df " << df;
}

}  // namespace millrace
