// One row of logits with everything that a request may ask of it: penalties, bans and biases against transformers
// (tests/golden/sampling/edits.json), distributions of edited rows alone and with the filters in pairs, logprobs
// against plain formulas, and rows that are broken.
#include "runner/row_worker.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "runner/logprobs.h"
#include "runner/testing/sampling_testing.h"
#include "wire/limits.h"

namespace millrace {
namespace {

using nlohmann::json;

json golden(const std::string& name) {
  std::ifstream file(std::string(MILLRACE_SOURCE_DIR) + "/tests/golden/sampling/" + name);
  return json::parse(file);
}

SequenceStep step_of(SamplingSpec spec, std::vector<int32_t> generated = {}) {
  SequenceStep step;
  step.tokens = {1};
  step.sample = true;
  step.sampling = std::move(spec);
  step.last_is_generated = !generated.empty();
  if (step.last_is_generated) {
    step.tokens = {generated.back()};
    generated.pop_back();
  }
  step.generated = std::move(generated);
  return step;
}

std::vector<float> random_row(uint32_t seed, std::size_t vocab) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 3.0f);
  std::vector<float> row(vocab);
  for (float& x : row) x = normal(random);
  return row;
}

// The documented order in doubles, token by token.
std::vector<float> naive_edits(const std::vector<float>& logits, const SequenceStep& step) {
  const SamplingSpec& s = step.sampling;
  std::vector<float> out;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    const auto before = std::count(step.generated.begin(), step.generated.end(), id);
    const auto count = static_cast<double>(before + (step.last_is_generated && step.tokens.back() == id));
    double x = logits[i] - s.frequency_penalty * count - (count > 0 ? s.presence_penalty : 0);
    if (std::count(s.banned.begin(), s.banned.end(), id)) x = -kInf;
    if (count > 0) x = x > 0 ? x / s.repetition_penalty : x * s.repetition_penalty;
    for (const auto& bias : s.logit_bias) x += bias.token == id ? bias.bias : 0;
    out.push_back(static_cast<float>(x));
  }
  return out;
}

TEST(LogitEdits, EqualTheProcessorsOfTransformers) {
  const json cases = golden("edits.json");
  ASSERT_EQ(cases.size(), 48u);
  int banned = 0, changed = 0;
  for (const json& c : cases) {
    SamplingSpec spec;
    spec.frequency_penalty = c["frequency_penalty"];
    spec.presence_penalty = c["presence_penalty"];
    spec.repetition_penalty = c["repetition_penalty"];
    spec.banned = c["banned"].get<std::vector<int32_t>>();
    std::vector<wire::LogitBias> biases;
    for (const json& pair : c["logit_bias"]) biases.push_back({pair[0], pair[1]});
    spec.logit_bias = std::move(biases);
    auto row = c["logits"].get<std::vector<float>>();
    const auto original = row;
    LogitEdits edits(static_cast<int32_t>(row.size()));
    const auto generated = c["generated"].get<std::vector<int32_t>>();
    ASSERT_TRUE(edits.apply(row, spec, {generated, {}}).ok());
    for (std::size_t i = 0; i < row.size(); ++i) {
      const json& wanted = c["edited"][i];
      if (wanted.is_null()) {
        EXPECT_EQ(row[i], -kInf);
        ++banned;
        continue;
      }
      // transformers rounds to f32 after each of up to five operations on numbers up to 256: 5 * 2^-17 at most.
      EXPECT_NEAR(row[i], wanted.get<double>(), 4e-5) << c.dump() << " token " << i;
      changed += row[i] != original[i];
    }
    const auto edited = row;
    edits.restore(row);
    EXPECT_EQ(std::memcmp(row.data(), original.data(), row.size() * sizeof(float)), 0);
    if (generated.empty()) continue;
    // As the runner gives them: the last one apart.
    ASSERT_TRUE(edits.apply(row, spec, {std::span(generated).first(generated.size() - 1), generated.back()}).ok());
    EXPECT_EQ(std::memcmp(row.data(), edited.data(), row.size() * sizeof(float)), 0);
    edits.restore(row);
  }
  EXPECT_GT(banned, 50);
  EXPECT_GT(changed, 300);
}

// Frequency penalties with greedy: the argmax of the edited row, and the row is the model's own afterwards.
TEST(RowWorker, PenaltiesHoldForGreedyToo) {
  RowWorker worker(4);
  std::vector<float> row = {1.0f, 3.0f, 2.5f, 0.0f};
  const auto original = row;
  SamplingSpec spec = spec_of(0, -1, 1, 0);
  const auto greedy = [&](const SamplingSpec& s, std::vector<int32_t> generated) {
    SampledToken out;
    const Status status = worker.sample(row, step_of(s, std::move(generated)), out);
    EXPECT_TRUE(status.ok()) << status.to_string();
    EXPECT_EQ(std::memcmp(row.data(), original.data(), sizeof(float) * row.size()), 0);
    return out.token;
  };
  EXPECT_EQ(greedy(spec, {1, 1}), 1);
  spec.frequency_penalty = 0.3;
  EXPECT_EQ(greedy(spec, {1}), 1);     // 2.7
  EXPECT_EQ(greedy(spec, {1, 1}), 2);  // 2.4
  spec = spec_of(0, -1, 1, 0);
  spec.repetition_penalty = 1.5;
  EXPECT_EQ(greedy(spec, {1, 1, 1}), 2);  // 2.0, once
  spec.logit_bias = {{3, 10}};
  EXPECT_EQ(greedy(spec, {1}), 3);
  spec.banned = {3, 2};
  EXPECT_EQ(greedy(spec, {1}), 1) << "a bias does not lift a ban";
}

TEST(RowWorker, DistributionsOfEditedRowsAloneAndInPairs) {
  const std::vector<float> logits = {0.5f, 2.0f, -1.0f, 1.5f, 0.0f, 2.0f, -kInf, 1.0f, -0.5f, 0.25f};
  const std::vector<int32_t> generated = {1, 3, 1, 0, 1, 2, 3};
  using Change = void (*)(SamplingSpec&);
  const Change changes[] = {
      [](SamplingSpec& s) { s.temperature = 0.7; },
      [](SamplingSpec& s) { s.top_k = 6; },
      [](SamplingSpec& s) { s.top_p = 0.85; },
      [](SamplingSpec& s) { s.min_p = 0.15; },
      [](SamplingSpec& s) { s.frequency_penalty = 0.6; },
      [](SamplingSpec& s) { s.presence_penalty = -0.8; },
      [](SamplingSpec& s) { s.repetition_penalty = 1.7; },
      [](SamplingSpec& s) {
        s.logit_bias = {{4, 1.25}, {5, -0.75}, {6, 100}};
      },
      [](SamplingSpec& s) {
        s.banned = {5, 8};
      },
  };
  constexpr int kDraws = 20000;
  RowWorker worker(static_cast<int32_t>(logits.size()));
  uint64_t seed = 100;
  for (std::size_t a = 0; a < std::size(changes); ++a) {
    for (std::size_t b = a; b < std::size(changes); ++b) {
      SCOPED_TRACE(fmt::format("changes {} and {}", a, b));
      SequenceStep step = step_of(spec_of(1, -1, 1, 0, ++seed), generated);
      changes[a](step.sampling);
      if (b != a) changes[b](step.sampling);
      std::vector<int> seen(logits.size(), 0);
      std::vector<float> row = logits;
      for (step.position = 0; step.position < kDraws; ++step.position) {
        SampledToken out;
        ASSERT_TRUE(worker.sample(row, step, out).ok());
        ++seen[static_cast<std::size_t>(out.token)];
      }
      expect_fits(seen, naive_probabilities(naive_edits(logits, step), step.sampling));
    }
  }
}

// What asks for nothing new goes the old way: with a penalty that finds no generated token the draw is the same too.
TEST(RowWorker, RowsWithoutEditsAreDrawnFromAsTheyAre) {
  std::vector<float> row = random_row(5, 300);
  RowWorker worker(300);
  Sampler sampler(300);
  for (int32_t position = 0; position < 200; ++position) {
    SamplingSpec spec = spec_of(0.9, position % 3 ? -1 : 20, position % 2 ? 1 : 0.9, 0, 7);
    SequenceStep step = step_of(spec);
    step.position = position;
    SampledToken plain, penalized, zero;
    ASSERT_TRUE(worker.sample(row, step, plain).ok());
    EXPECT_EQ(plain.token, *sampler.sample(row, spec, position + 1));
    EXPECT_FALSE(plain.logprobs.has_value());
    step.sampling.frequency_penalty = 1;
    ASSERT_TRUE(worker.sample(row, step, penalized).ok());
    EXPECT_EQ(penalized.token, plain.token);
    step.sampling.logit_bias = {{3, 0.0}};
    ASSERT_TRUE(worker.sample(row, step, zero).ok());
    EXPECT_EQ(zero.token, plain.token);
  }
}

TEST(RowWorker, BansThatLeaveNothingAreNamed) {
  RowWorker worker(3);
  SequenceStep step = step_of(spec_of(1, -1, 1, 0));
  step.sampling.banned = {0, 1, 2};
  step.sampling.logit_bias = {{1, 100}};
  SampledToken out;
  for (const double temperature : {0.0, 1.0}) {
    step.sampling.temperature = temperature;
    std::vector<float> row = {1, 2, 3};
    const Status status = worker.sample(row, step, out);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("banned (3 banned ids)"), std::string::npos) << status.message();
    EXPECT_EQ(row, (std::vector<float>{1, 2, 3}));
    row = {-kInf, -kInf, -kInf};
    EXPECT_EQ(worker.sample(row, step, out).code(), StatusCode::kInternal) << "the model's fault, not the bans'";
  }
  step.sampling.banned = {0, 2};
  std::vector<float> row = {1, -kInf, 3};
  EXPECT_EQ(worker.sample(row, step, out).code(), StatusCode::kInvalidArgument);
  row = {1, 2, 3};
  EXPECT_TRUE(worker.sample(row, step, out).ok());
  EXPECT_EQ(out.token, 1);
}

// Editing does not hide a broken logit, and the worker serves the next row as if nothing had been.
TEST(RowWorker, BrokenRowsFailWithEverythingAsked) {
  RowWorker worker(6);
  SequenceStep step = step_of(spec_of(1, -1, 1, 0), {0, 1, 1});
  step.sampling.repetition_penalty = 1.2;
  step.sampling.banned = {2};
  step.sampling.logit_bias = {{3, 5}};
  step.sampling.top_logprobs = 2;
  step.score_targets = {4};
  SampledToken out;
  wire::TokenLogprobs scored;
  for (std::size_t at = 0; at < 6; ++at) {
    for (const float bad : {kNan, kInf}) {
      std::vector<float> row = {1, 2, 3, 4, 5, 6};
      row[at] = bad;
      const auto original = row;
      for (const Status& status : {worker.sample(row, step, out), worker.score(row, step, 0, scored)}) {
        EXPECT_EQ(status.code(), StatusCode::kInternal);
        EXPECT_NE(status.message().find(fmt::format("token {} is", at)), std::string::npos) << status.message();
      }
      EXPECT_EQ(std::memcmp(row.data(), original.data(), sizeof(float) * row.size()), 0);
    }
  }
  std::vector<float> row = {1, 2, 3, 4, 5, 6};
  EXPECT_TRUE(worker.sample(row, step, out).ok());
  EXPECT_TRUE(worker.score(row, step, 0, scored).ok());
  step.sampling.frequency_penalty = 2.5;
  EXPECT_EQ(worker.sample(row, step, out).code(), StatusCode::kInvalidArgument);
}

// The smallest repetition penalty turns 1 into more than f32 holds: it stays finite, and so does the draw.
TEST(RowWorker, ExtremePenaltiesStayFinite) {
  RowWorker worker(3);
  SequenceStep step = step_of(spec_of(1, -1, 1, 0), {1});
  step.sampling.repetition_penalty = std::numeric_limits<double>::denorm_min();
  SampledToken out;
  std::vector<float> row = {2, 1, 2};
  ASSERT_TRUE(worker.sample(row, step, out).ok());
  EXPECT_EQ(out.token, 1);
  row = {2, -std::numeric_limits<float>::max(), 2};
  step.sampling.repetition_penalty = 2;
  ASSERT_TRUE(worker.sample(row, step, out).ok());
  EXPECT_NE(out.token, 1);
}

TEST(RowWorker, AThousandBiasesAndBothEndsOfTheVocabulary) {
  constexpr int32_t kVocab = 5000;
  std::vector<float> row = random_row(11, kVocab);
  SequenceStep step = step_of(spec_of(0.8, -1, 0.95, 0, 3), {0, kVocab - 1, kVocab - 1});
  step.sampling.frequency_penalty = -1.5;
  std::vector<wire::LogitBias> biases;
  for (std::size_t i = 0; i < wire::kMaxLogitBiases; ++i) {
    const auto token = static_cast<int32_t>((i * 4) % (kVocab - 1));
    biases.push_back({i + 1 == wire::kMaxLogitBiases ? kVocab - 1 : token, i % 2 ? 2.0 : -100.0});
  }
  step.sampling.logit_bias = std::move(biases);
  const auto p = naive_probabilities(naive_edits(row, step), step.sampling);
  RowWorker worker(kVocab);
  std::set<int32_t> drawn;
  for (step.position = 0; step.position < 300; ++step.position) {
    SampledToken out;
    ASSERT_TRUE(worker.sample(row, step, out).ok());
    EXPECT_GT(p[static_cast<std::size_t>(out.token)], 0) << out.token;
    drawn.insert(out.token);
  }
  EXPECT_GT(drawn.size(), 20u);
}

// By the definition, in long double and without the largest logit taken out first.
double naive_logprob(const std::vector<float>& logits, int32_t id) {
  long double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<long double>(x));
  return static_cast<double>(logits[static_cast<std::size_t>(id)] - std::log(sum));
}

// A masked draw is a draw from the row with -inf elsewhere, behind penalties too; logprobs are the model's own.
TEST(RowWorker, AMaskLeavesOnlyItsTokens) {
  constexpr int32_t kVocab = 200;
  std::vector<float> row = random_row(31, kVocab);
  const auto original = row;
  grammar::TokenMask mask((kVocab + 63) / 64, 0);
  for (const int32_t id : {3, 63, 64, 130, kVocab - 1}) grammar::allow(mask, id);
  std::vector<float> other = row;
  for (int32_t id = 0; id < kVocab; ++id) {
    if (!grammar::allows(mask, id)) other[static_cast<std::size_t>(id)] = -std::numeric_limits<float>::infinity();
  }
  SequenceStep step = step_of(spec_of(0.9, -1, 0.98, 0, 5), {64, 64});
  step.sampling.frequency_penalty = 0.5;
  step.sampling.top_logprobs = 2;
  RowWorker worker(kVocab);
  std::set<int32_t> drawn;
  for (step.position = 0; step.position < 100; ++step.position) {
    SampledToken masked, wanted;
    ASSERT_TRUE(worker.sample(row, step, masked, &mask).ok());
    ASSERT_TRUE(worker.sample(other, step, wanted).ok());
    EXPECT_EQ(masked.token, wanted.token);
    EXPECT_NEAR(*masked.logprobs->logprob, naive_logprob(row, masked.token), 1e-12);
    EXPECT_EQ(std::memcmp(row.data(), original.data(), sizeof(float) * row.size()), 0);
    drawn.insert(masked.token);
  }
  EXPECT_GT(drawn.size(), 2u);
  SampledToken out;
  row[7] = kNan;  // where the mask forbids it
  EXPECT_EQ(worker.sample(row, step, out, &mask).code(), StatusCode::kInternal);
  row = original;
  step.sampling.banned = {3, 63, 64, 130, kVocab - 1};
  EXPECT_EQ(worker.sample(row, step, out, &mask).code(), StatusCode::kInvalidArgument);
}

TEST(RowWorker, AMaskOfAnyDensityForbidsTheOthers) {
  constexpr int32_t kVocab = 1000;  // its last word of the mask has bits that stand for no token
  std::mt19937 random(8);
  std::vector<float> row = random_row(32, kVocab);
  RowWorker worker(kVocab);
  SequenceStep step = step_of(spec_of(1, -1, 1, 0, 6), {64, 64});
  for (const double density : {0.01, 0.3, 0.5, 0.7, 0.99, 1.0}) {
    std::bernoulli_distribution allowed(density);
    grammar::TokenMask mask((kVocab + 63) / 64, 0);
    grammar::allow(mask, 17);
    for (std::size_t id = 0; id < mask.size() * 64; ++id) {
      if (allowed(random)) grammar::allow(mask, static_cast<int32_t>(id));
    }
    std::vector<float> other = row;
    for (int32_t id = 0; id < kVocab; ++id) {
      if (!grammar::allows(mask, id)) other[static_cast<std::size_t>(id)] = -std::numeric_limits<float>::infinity();
    }
    for (step.position = 0; step.position < 50; ++step.position) {
      SampledToken masked, wanted;
      ASSERT_TRUE(worker.sample(row, step, masked, &mask).ok());
      ASSERT_TRUE(worker.sample(other, step, wanted).ok());
      EXPECT_EQ(masked.token, wanted.token) << density;
    }
  }
}

TEST(Logprobs, AreTheLogSoftmaxOfTheModelsOwnLogits) {
  constexpr int32_t kVocab = 2000;
  std::vector<float> row = random_row(21, kVocab);
  RowWorker worker(kVocab);
  SequenceStep step = step_of(spec_of(0.3, 5, 0.9, 0.05), {7, 8});
  step.sampling.presence_penalty = 2;
  step.sampling.logit_bias = {{0, 100}};  // always drawn, however unlikely the model holds it
  step.sampling.logprob_token_ids = {0, kVocab - 1, 7, 7};
  std::vector<int32_t> order(kVocab);
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](int32_t a, int32_t b) { return row[static_cast<std::size_t>(a)] > row[static_cast<std::size_t>(b)]; });
  for (const int32_t top : {0, 1, 20, static_cast<int32_t>(wire::kMaxTopLogprobs)}) {
    step.sampling.top_logprobs = top;
    SampledToken out;
    ASSERT_TRUE(worker.sample(row, step, out).ok());
    ASSERT_TRUE(out.logprobs.has_value());
    const wire::TokenLogprobs& found = *out.logprobs;
    EXPECT_EQ(found.token, 0);
    EXPECT_NEAR(*found.logprob, naive_logprob(row, 0), 1e-12);
    EXPECT_EQ(found.top_ids, std::vector<int32_t>(order.begin(), order.begin() + top));
    ASSERT_EQ(found.top.size(), static_cast<std::size_t>(top));
    for (std::size_t i = 0; i < found.top.size(); ++i) {
      EXPECT_NEAR(found.top[i], naive_logprob(row, found.top_ids[i]), 1e-12);
    }
    ASSERT_EQ(found.of_ids.size(), 4u);
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_NEAR(found.of_ids[i], naive_logprob(row, step.sampling.logprob_token_ids[i]), 1e-12);
    }
  }
}

TEST(Logprobs, TiesGoToTheLowerIdAndSmallVocabulariesGiveAllTheyHave) {
  TopSelect select(5);
  SamplingSpec spec;
  spec.top_logprobs = 20;
  const std::vector<float> row = {1, 4, 4, -kInf, 4};
  const auto found = token_logprobs(row, 4, spec, select);
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->top_ids, (std::vector<int32_t>{1, 2, 4, 0, 3}));
  EXPECT_EQ(found->top.back(), -std::numeric_limits<double>::infinity());
  EXPECT_EQ(*found->logprob, found->top[0]);
  TopSelect one(1);
  const auto only = token_logprobs(std::vector<float>{-3.5f}, 0, spec, one);
  EXPECT_EQ(*only->logprob, 0);
  EXPECT_EQ(only->top_ids, std::vector<int32_t>{0});
}

TEST(TopSelect, EqualsAFullSort) {
  std::mt19937 random(9);
  for (const int n : {1, 2, 15, 16, 17, 100, 3000}) {
    TopSelect select(n);
    for (int trial = 0; trial < 20; ++trial) {
      std::vector<float> row(static_cast<std::size_t>(n));
      for (float& x : row) x = static_cast<float>(random() % (trial % 2 ? 9 : 100000));
      std::vector<int32_t> order(row.size());
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
        return row[static_cast<std::size_t>(a)] > row[static_cast<std::size_t>(b)];
      });
      for (const int32_t k : {1, 2, 16, 64, 1024, 1025, 5000}) {
        std::vector<int32_t> wanted(order.begin(), order.begin() + std::min(k, n));
        const auto ranked = select.ranked(row, k);
        ASSERT_EQ(std::vector<int32_t>(ranked.begin(), ranked.end()), wanted) << "n " << n << " k " << k;
        std::sort(wanted.begin(), wanted.end());
        const auto by_id = select.by_id(row, k);
        ASSERT_EQ(std::vector<int32_t>(by_id.begin(), by_id.end()), wanted) << "n " << n << " k " << k;
      }
    }
  }
}

}  // namespace
}  // namespace millrace
