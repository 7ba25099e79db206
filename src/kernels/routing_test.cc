// Routing against a model that sorts: the choice, the ties, the weights, and broken rows.
#include "kernels/routing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/rng.h"

namespace millrace::kernels {
namespace {

struct Routed {
  std::vector<int32_t> chosen;
  std::vector<float> weights;
};

Routed routed(std::vector<float>& logits, int64_t experts, int64_t k, bool normalize) {
  const auto rows = static_cast<int64_t>(logits.size()) / experts;
  Routed out{std::vector<int32_t>(static_cast<std::size_t>(rows * k)),
             std::vector<float>(static_cast<std::size_t>(rows * k))};
  route(ConstRows(Rows(logits.data(), rows, experts)), k, normalize, out.chosen, out.weights);
  return out;
}

TEST(Route, EqualsSortingTheSoftmax) {
  for (const int64_t experts : {1, 2, 7, 32, 128}) {
    for (const int64_t k : {int64_t{1}, std::min<int64_t>(experts, 4), std::min<int64_t>(experts, 8), experts}) {
      for (const bool normalize : {false, true}) {
        std::vector<float> logits(static_cast<std::size_t>(experts * 20));
        for (std::size_t i = 0; i < logits.size(); ++i) {
          // Few different values, so that there are ties.
          logits[i] = std::floor(8 * static_cast<float>(philox_uniform(7, i, static_cast<uint64_t>(experts)))) - 4;
        }
        const Routed out = routed(logits, experts, k, normalize);
        for (std::size_t r = 0; r < 20; ++r) {
          const float* row = logits.data() + r * static_cast<std::size_t>(experts);
          std::vector<int32_t> ranked(static_cast<std::size_t>(experts));
          std::iota(ranked.begin(), ranked.end(), 0);
          std::stable_sort(ranked.begin(), ranked.end(), [&](int32_t a, int32_t b) { return row[a] > row[b]; });
          double all = 0, taken = 0;
          for (const int32_t e : ranked) all += std::exp(row[e]);
          ranked.resize(static_cast<std::size_t>(k));
          for (const int32_t e : ranked) taken += std::exp(row[e]);
          std::sort(ranked.begin(), ranked.end());
          for (std::size_t i = 0; i < ranked.size(); ++i) {
            const std::size_t at = r * static_cast<std::size_t>(k) + i;
            EXPECT_EQ(out.chosen[at], ranked[i]);
            EXPECT_NEAR(out.weights[at], std::exp(row[ranked[i]]) / (normalize ? taken : all), 1e-6);
          }
        }
      }
    }
  }
}

TEST(Route, ABrokenRowIsBrokenAlone) {
  const float nan = std::nanf("");
  std::vector<float> logits = {1, 2, 3, 4, nan, nan, nan, nan, 1, nan, 3, 2, 4, 3, 2, 1};
  const Routed out = routed(logits, 4, 2, true);
  for (const std::size_t row : {std::size_t{1}, std::size_t{2}}) {
    EXPECT_TRUE(std::isnan(out.weights[2 * row]) && std::isnan(out.weights[2 * row + 1]));
    EXPECT_GE(out.chosen[2 * row], 0);
    EXPECT_LT(out.chosen[2 * row], out.chosen[2 * row + 1]);
    EXPECT_LT(out.chosen[2 * row + 1], 4);
  }
  EXPECT_EQ(out.chosen[0], 2);
  EXPECT_EQ(out.chosen[7], 1);
  EXPECT_FLOAT_EQ(out.weights[0] + out.weights[1], 1);
  EXPECT_FLOAT_EQ(out.weights[6] + out.weights[7], 1);
}

TEST(Rows, TravelToAnExpertAndBack) {
  std::vector<float> x = {1, 2, 3, 4, 5, 6}, picked(4), y = {10, 20, 30, 40, 50, 60};
  const std::vector<int32_t> rows = {2, 0};
  gather_rows(ConstRows(Rows(x.data(), 3, 2)), rows, Rows(picked.data(), 2, 2));
  EXPECT_EQ(picked, (std::vector<float>{5, 6, 1, 2}));
  const std::vector<float> scales = {0.5f, 2};
  scatter_add(ConstRows(Rows(picked.data(), 2, 2)), rows, scales, Rows(y.data(), 3, 2));
  EXPECT_EQ(y, (std::vector<float>{12, 24, 30, 40, 52.5f, 63}));
}

}  // namespace
}  // namespace millrace::kernels
