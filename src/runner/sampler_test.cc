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
#include "runner/testing/sampling_testing.h"
#include "wire/limits.h"

namespace millrace {
namespace {

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

// Draws over positions, or over seeds at one position.
void expect_distribution(const std::vector<float>& logits, const SamplingSpec& spec, bool over_seeds) {
  constexpr int kDraws = 40000;
  std::vector<int> seen(logits.size(), 0);
  Sampler sampler(static_cast<int32_t>(logits.size()));
  for (int i = 0; i < kDraws; ++i) {
    SamplingSpec one = spec;
    if (over_seeds) one.seed += static_cast<uint64_t>(i);
    const auto token = sampler.sample(logits, one, over_seeds ? 17 : i);
    ASSERT_TRUE(token.ok());
    ++seen[static_cast<std::size_t>(*token)];
  }
  expect_fits(seen, naive_probabilities(logits, spec));
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

// The ends of what a temperature may be, with every filter: an impossible token is never drawn, nor one under the cut.
TEST(Sampler, ExtremeTemperatures) {
  const int n = 500;
  std::vector<float> logits(n, -kInf);
  for (std::size_t i = 0; i < 200; ++i) logits[2 * i] = static_cast<float>(i);
  Sampler sampler(n);
  for (int32_t position = 0; position < 200; ++position) {
    for (const double top_p : {0.7, 1.0}) {
      const auto hot = sampler.sample(logits, spec_of(1.7e308, -1, top_p, 0), position);
      ASSERT_TRUE(hot.ok());
      EXPECT_EQ(*hot % 2, 0);
      EXPECT_GE(*hot, top_p < 1 ? 2 * 59 : 0) << "200 equal weights: the 141 likeliest ids stay";
      EXPECT_EQ(*sampler.sample(logits, spec_of(1.01e-6, -1, top_p, 0), position), 398);
    }
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

constexpr int32_t kVocab = 50;

void expect_refused(const SamplingSpec& spec, const std::string& words) {
  const Status status = check_sampling(spec, kVocab);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << words;
  EXPECT_NE(status.message().find(words), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("wanted"), std::string::npos) << status.message();
}

template <typename Change>
SamplingSpec spec_with(Change change) {
  SamplingSpec spec;
  change(spec);
  return spec;
}

// Every field at both of its edges, one step outside of them, and with what is not a number.
TEST(CheckSampling, EveryFieldIsSweptAtItsEdges) {
  const double nan = kNan, inf = kInf;
  struct Field {
    const char* name;
    double SamplingSpec::*field;
    std::vector<double> good, bad;
  };
  const double above_two = std::nextafter(2.0, 3.0), tiny = std::numeric_limits<double>::denorm_min();
  const Field fields[] = {
      {"temperature", &SamplingSpec::temperature, {0, tiny, 1, 1e300}, {-tiny, -1, nan, inf, -inf}},
      {"top_p", &SamplingSpec::top_p, {tiny, 0.5, 1}, {0, -tiny, std::nextafter(1.0, 2.0), nan, inf, -inf}},
      {"min_p", &SamplingSpec::min_p, {0, tiny, 1}, {-tiny, std::nextafter(1.0, 2.0), nan, inf, -inf}},
      {"frequency_penalty", &SamplingSpec::frequency_penalty, {-2, 0, 2}, {-above_two, above_two, nan, inf, -inf}},
      {"presence_penalty", &SamplingSpec::presence_penalty, {-2, 0, 2}, {-above_two, above_two, nan, inf, -inf}},
      {"repetition_penalty", &SamplingSpec::repetition_penalty, {tiny, 1, 2}, {0, -1, above_two, nan, inf, -inf}},
  };
  for (const Field& field : fields) {
    SamplingSpec spec;
    for (const double value : field.good) {
      spec.*field.field = value;
      EXPECT_TRUE(check_sampling(spec, kVocab).ok()) << field.name << " " << value;
    }
    for (const double value : field.bad) {
      spec.*field.field = value;
      expect_refused(spec, fmt::format("{} is {}", field.name, value));
    }
  }
}

TEST(CheckSampling, CountsIdsAndBiasesAreSweptAtTheirEdges) {
  constexpr int32_t kMaxTop = static_cast<int32_t>(wire::kMaxTopLogprobs), kMaxInt = 2147483647;
  for (const int32_t good : {-1, 0, 1, kMaxTop}) {
    EXPECT_TRUE(check_sampling(spec_with([&](auto& s) { s.top_logprobs = good; }), kVocab).ok()) << good;
  }
  for (const int32_t bad : {-2, kMaxTop + 1, kMaxInt, -kMaxInt - 1}) {
    expect_refused(spec_with([&](auto& s) { s.top_logprobs = bad; }), fmt::format("top_logprobs is {}", bad));
  }
  for (const int32_t good : {-1, 1, kMaxInt}) {
    EXPECT_TRUE(check_sampling(spec_with([&](auto& s) { s.top_k = good; }), kVocab).ok()) << good;
  }
  for (const double good : {-100.0, 0.0, 100.0}) {
    EXPECT_TRUE(check_sampling(spec_with([&](auto& s) { s.logit_bias = {{49, good}}; }), kVocab).ok()) << good;
  }
  for (const double bad :
       {std::nextafter(-100.0, -101.0), std::nextafter(100.0, 101.0), double{kNan}, double{kInf}, double{-kInf}}) {
    expect_refused(spec_with([&](auto& s) {
                     s.logit_bias = {{49, bad}};
                   }),
                   fmt::format("logit_bias of token 49 is {}", bad));
  }
  for (const int32_t id : {0, kVocab - 1, -1, kVocab}) {
    const bool good = id >= 0 && id < kVocab;
    const std::pair<SamplingSpec, std::string> named[] = {
        {spec_with([&](auto& s) {
           s.logit_bias = {{id, 1.0}};
         }),
         "logit_bias"},
        {spec_with([&](auto& s) {
           s.banned = {3, id};
         }),
         "banned"},
        {spec_with([&](auto& s) { s.logprob_token_ids = {id}; }), "logprob_token_ids"},
    };
    for (const auto& [spec, field] : named) {
      EXPECT_EQ(check_sampling(spec, kVocab).ok(), good) << field << " " << id;
      if (!good) expect_refused(spec, fmt::format("{} names the token {}; wanted [0, 50)", field, id));
    }
  }
  EXPECT_TRUE(
      check_sampling(spec_with([](auto& s) { s.logit_bias = std::vector<wire::LogitBias>(wire::kMaxLogitBiases); }),
                     kVocab)
          .ok());
  expect_refused(spec_with([](auto& s) { s.logit_bias = std::vector<wire::LogitBias>(wire::kMaxLogitBiases + 1); }),
                 "logit_bias has 1025 entries");
  EXPECT_TRUE(
      check_sampling(spec_with([](auto& s) { s.logprob_token_ids = std::vector<int32_t>(wire::kMaxLogprobTokenIds); }),
                     kVocab)
          .ok());
  expect_refused(spec_with([](auto& s) { s.logprob_token_ids = std::vector<int32_t>(wire::kMaxLogprobTokenIds + 1); }),
                 "logprob_token_ids has 1025 entries");
}

}  // namespace
}  // namespace millrace
