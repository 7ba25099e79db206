// The sampler against a plain implementation of the documented order (full sort, doubles), against the distributions it
// promises (chi-square with fixed seeds), and at the edges of every parameter.
#include "runner/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "base/rng.h"

namespace millrace {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

SamplingSpec spec_of(double temperature, int32_t top_k, double top_p, double min_p, uint64_t seed = 1) {
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
std::vector<double> naive_probabilities(const std::vector<float>& logits, const SamplingSpec& spec) {
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

// True where `token` is the inverse of the cumulative distribution at the uniform number of (seed, position), with room
// for rounding at the border between two tokens.
bool is_inverse(const std::vector<double>& p, const SamplingSpec& spec, int32_t position, int32_t token) {
  const PhiloxBlock words = philox(spec.seed, static_cast<uint64_t>(position));
  const double u = uniform_open(words[0], words[1]);
  const auto at = static_cast<std::size_t>(token);
  const double before = std::accumulate(p.begin(), p.begin() + token, 0.0);
  return p[at] > 0 && u >= before - 1e-12 && u <= before + p[at] + 1e-12;
}

std::vector<float> random_logits(std::mt19937& random, int n, bool with_ties, bool with_holes) {
  std::normal_distribution<float> normal(0.0f, 3.0f);
  std::vector<float> logits(static_cast<std::size_t>(n));
  for (float& x : logits) x = with_ties ? std::round(normal(random)) : normal(random);
  if (with_holes) {
    for (std::size_t i = 1; i < logits.size(); i += 3) logits[i] = -kInf;
  }
  return logits;
}

TEST(Sampler, EqualsThePlainImplementation) {
  std::mt19937 random(7);
  const double temperatures[] = {0.05, 0.7, 1.0, 3.0};
  const int32_t top_ks[] = {-1, 1, 2, 5, 50, 2000, 1 << 30};
  const double top_ps[] = {1e-9, 0.1, 0.5, 0.9, 0.999, 1.0};
  const double min_ps[] = {0.0, 0.01, 0.3, 1.0};
  int checked = 0;
  for (int n : {1, 2, 7, 100, 3000}) {
    Sampler sampler(n);
    for (int variant = 0; variant < 4; ++variant) {
      const auto logits = random_logits(random, n, variant & 1, variant & 2);
      for (int trial = 0; trial < 120; ++trial) {
        const auto pick = [&](const auto& list) { return list[random() % std::size(list)]; };
        const SamplingSpec spec =
            spec_of(pick(temperatures), pick(top_ks), pick(top_ps), pick(min_ps), (uint64_t{random()} << 32) + 5);
        const auto p = naive_probabilities(logits, spec);
        const auto position = static_cast<int32_t>(random() % 100000);
        const auto token = sampler.sample(logits, spec, position);
        ASSERT_TRUE(token.ok()) << token.status().to_string();
        EXPECT_TRUE(is_inverse(p, spec, position, *token))
            << "n " << n << " T " << spec.temperature << " top_k " << spec.top_k << " top_p " << spec.top_p << " min_p "
            << spec.min_p << " token " << *token;
        ++checked;
      }
    }
  }
  EXPECT_EQ(checked, 5 * 4 * 120);
}

// Flat logits make every filter cut through ties, and make top_p rank most of the vocabulary.
TEST(Sampler, FlatVocabularyCutsTiesById) {
  const int n = 40000;
  const std::vector<float> logits(n, 0.25f);
  Sampler sampler(n);
  for (int32_t position = 0; position < 40; ++position) {
    auto token = sampler.sample(logits, spec_of(1, 1500, 1, 0), position);
    EXPECT_LT(*token, 1500);
    token = sampler.sample(logits, spec_of(1, -1, 0.5, 0), position);
    EXPECT_LE(*token, n / 2);
    token = sampler.sample(logits, spec_of(1, 3, 0.5, 1), position);
    EXPECT_LT(*token, 3);
  }
}

// Pearson's statistic stays below the 1 - 1e-6 quantile of its distribution; approximated by Wilson and Hilferty
// (PNAS 17, 1931): df * (1 - 2/(9 df) + z sqrt(2/(9 df)))^3 with z = 4.753.
double chi_square_limit(double df) {
  const double a = 2 / (9 * df);
  return df * std::pow(1 - a + 4.753 * std::sqrt(a), 3);
}

void expect_distribution(const std::vector<float>& logits, const SamplingSpec& spec, bool over_seeds) {
  constexpr int kDraws = 40000;
  const auto p = naive_probabilities(logits, spec);
  std::vector<int> seen(logits.size(), 0);
  Sampler sampler(static_cast<int32_t>(logits.size()));
  for (int i = 0; i < kDraws; ++i) {
    SamplingSpec one = spec;
    if (over_seeds) one.seed += static_cast<uint64_t>(i);
    const auto token = sampler.sample(logits, one, over_seeds ? 17 : i);
    ASSERT_TRUE(token.ok());
    ++seen[static_cast<std::size_t>(*token)];
  }
  double statistic = 0, df = -1;
  for (std::size_t i = 0; i < p.size(); ++i) {
    if (p[i] == 0) {
      EXPECT_EQ(seen[i], 0) << "token " << i << " was filtered out";
      continue;
    }
    const double expected = p[i] * kDraws;
    ASSERT_GT(expected, 5) << "the test wants fuller cells";
    statistic += (seen[i] - expected) * (seen[i] - expected) / expected;
    df += 1;
  }
  ASSERT_GE(df, 1);
  EXPECT_LT(statistic, chi_square_limit(df)) << "df " << df;
}

TEST(Sampler, DistributionsOverPositionsAndSeeds) {
  const std::vector<float> logits = {0.5f, 2.0f, -1.0f, 1.5f, 0.0f, 2.0f, -kInf, 1.0f};
  for (const bool over_seeds : {false, true}) {
    expect_distribution(logits, spec_of(1, -1, 1, 0, 42), over_seeds);
    expect_distribution(logits, spec_of(0.7, -1, 0.9, 0, 43), over_seeds);
    expect_distribution(logits, spec_of(1.3, 5, 1, 0, 44), over_seeds);
    expect_distribution(logits, spec_of(1, -1, 1, 0.2, 45), over_seeds);
    expect_distribution(logits, spec_of(2, 6, 0.8, 0.3, 46), over_seeds);
  }
}

TEST(Sampler, GreedyTakesTheLowestIdAmongTheLargest) {
  Sampler sampler(6);
  const std::vector<float> logits = {-kInf, 1.0f, 3.0f, 3.0f, -2.0f, 3.0f};
  EXPECT_EQ(*sampler.sample(logits, spec_of(0, -1, 1, 0), 0), 2);
  EXPECT_EQ(*sampler.sample(logits, spec_of(9.9e-7, -1, 1, 0), 0), 2);
  for (int32_t position = 0; position < 50; ++position) {
    EXPECT_EQ(*sampler.sample(logits, spec_of(5, 1, 1, 0), position), 2);
    EXPECT_EQ(*sampler.sample(logits, spec_of(5, -1, 1e-12, 0), position), 2);
    const int32_t tied = *sampler.sample(logits, spec_of(5, -1, 1, 1), position);  // min_p 1 keeps all the largest
    EXPECT_TRUE(tied == 2 || tied == 3 || tied == 5) << tied;
  }
}

TEST(Sampler, TheDrawForgetsWhatWasDrawnBefore) {
  std::mt19937 random(3);
  const auto logits = random_logits(random, 500, false, false), other = random_logits(random, 500, true, true);
  const SamplingSpec spec = spec_of(1, 40, 0.95, 0.01, 99);
  Sampler fresh(500), used(500);
  const int32_t wanted = *fresh.sample(logits, spec, 12);
  for (int i = 0; i < 20; ++i) {
    (void)used.sample(other, spec_of(2, -1, 0.99, 0, static_cast<uint64_t>(i)), i);
    EXPECT_EQ(*used.sample(logits, spec, 12), wanted);
  }
}

TEST(Sampler, BrokenLogitsAreErrorsOfTheRow) {
  Sampler sampler(3);
  for (const double temperature : {0.0, 1.0}) {
    const SamplingSpec spec = spec_of(temperature, -1, 1, 0);
    for (const float bad : {kNan, kInf}) {
      for (std::size_t at = 0; at < 3; ++at) {
        std::vector<float> logits = {1, 2, 3};
        logits[at] = bad;
        const auto token = sampler.sample(logits, spec, 0);
        ASSERT_FALSE(token.ok());
        EXPECT_EQ(token.status().code(), StatusCode::kInternal);
        EXPECT_NE(token.status().message().find("token " + std::to_string(at)), std::string::npos);
      }
    }
    EXPECT_EQ(sampler.sample(std::vector<float>(3, -kInf), spec, 0).status().code(), StatusCode::kInternal);
    EXPECT_EQ(*sampler.sample(std::vector<float>{-kInf, 0, -kInf}, spec, 0), 1);
  }
}

TEST(Sampler, SpecsOutOfRangeAreNamed) {
  Sampler sampler(2);
  const std::vector<float> logits = {0, 1};
  const std::pair<SamplingSpec, const char*> cases[] = {
      {spec_of(-1, -1, 1, 0), "temperature is -1"}, {spec_of(kNan, -1, 1, 0), "temperature is nan"},
      {spec_of(1, 0, 1, 0), "top_k is 0"},          {spec_of(1, -2, 1, 0), "top_k is -2"},
      {spec_of(1, -1, 0, 0), "top_p is 0"},         {spec_of(1, -1, 1.5, 0), "top_p is 1.5"},
      {spec_of(1, -1, kNan, 0), "top_p is nan"},    {spec_of(1, -1, 1, -0.1), "min_p is -0.1"},
      {spec_of(1, -1, 1, 1.1), "min_p is 1.1"},     {spec_of(kInf, -1, 1, 0), "temperature is inf"},
  };
  for (const auto& [spec, words] : cases) {
    const auto token = sampler.sample(logits, spec, 0);
    ASSERT_FALSE(token.ok()) << words;
    EXPECT_EQ(token.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(token.status().message().find(words), std::string::npos) << token.status().message();
  }
}

}  // namespace
}  // namespace millrace
