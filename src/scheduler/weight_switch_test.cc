// Switches of the weights and pauses of generation, on the fake runner, whose text depends on the weights that computed
// each row.
#include <gtest/gtest.h>

#include <random>

#include "base/log.h"
#include "scheduler/testing/harness.h"

namespace millrace {
namespace {

using testing::endless;
using testing::Harness;
using testing::HashModel;
using testing::kRoomy;
using testing::Outcome;
using testing::prompt;

// The token that follows rows which were computed with `row_versions`.
int32_t next_token(const std::vector<int32_t>& tokens, const std::vector<uint64_t>& row_versions, uint64_t seed) {
  uint64_t kv = 0, attended = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    kv = HashModel::next_kv(kv, tokens[i], row_versions[i]);
    attended = HashModel::mix(attended, kv);
  }
  SamplingSpec spec;
  spec.seed = seed;
  return endless().draw(attended, static_cast<int32_t>(tokens.size()), spec, {});
}

// Each token follows from the text before it. In place, rows keep the version of the batch that computed them: that of
// a generated token's row is the version of the token after it. Retracted, all rows have the token's own version.
void expect_text(const wire::TokenizedRequest& request, const Outcome& outcome, bool retracted) {
  std::vector<int32_t> tokens = request.prompt;
  ASSERT_EQ(outcome.versions.size(), outcome.tokens.size());
  for (std::size_t i = 0; i < outcome.tokens.size(); ++i) {
    const uint64_t version = outcome.versions[i];
    std::vector<uint64_t> rows(tokens.size(), retracted ? version : outcome.versions[0]);
    for (std::size_t row = request.prompt.size(); row < rows.size() && !retracted; ++row) {
      rows[row] = outcome.versions[row - request.prompt.size() + 1];
    }
    ASSERT_EQ(outcome.tokens[i], next_token(tokens, rows, request.sampling.seed)) << "token " << i;
    tokens.push_back(outcome.tokens[i]);
  }
  ASSERT_TRUE(std::ranges::is_sorted(outcome.versions));
}

class WeightSwitchTest : public ::testing::Test {
 protected:
  wire::TokenizedRequest add(uint64_t id, int32_t length = 20, int32_t max_tokens = 30) {
    wire::TokenizedRequest request = Harness::request(id, prompt(length, static_cast<int32_t>(id * 50)), max_tokens);
    harness_.receive(request);
    return request;
  }
  void steps(int count) {
    for (int i = 0; i < count; ++i) harness_.step();
  }
  Outcome& outcome(uint64_t id) { return harness_.outcomes.at(id); }

  Harness harness_{kRoomy, {}, endless()};
};

TEST_F(WeightSwitchTest, InPlaceTheNextBatchIsTheSwitchAndNoneIsLost) {
  const auto request = add(1);
  steps(10);
  std::vector<uint64_t> named;
  harness_.runner.on_submit = [&](const Batch& batch) { named.push_back(batch.weight_version); };
  harness_.switch_weights({.version = 2});
  EXPECT_TRUE(harness_.scheduler.switch_pending());
  const uint64_t bubbles = harness_.scheduler.facts().bubbles;
  harness_.step();
  EXPECT_EQ(named, std::vector<uint64_t>{2});  // the very next one, while the one before it was in flight
  harness_.step();
  EXPECT_FALSE(harness_.scheduler.switch_pending());
  harness_.run();
  EXPECT_EQ(harness_.scheduler.facts().bubbles, bubbles);
  EXPECT_EQ(outcome(1).tokens.size(), 30u);
  EXPECT_EQ(outcome(1).versions.front(), 1u);
  EXPECT_EQ(outcome(1).versions.back(), 2u);
  EXPECT_EQ(outcome(1).usage.retractions, 0);
  expect_text(request, outcome(1), false);
  harness_.expect_clean_end();
}

TEST_F(WeightSwitchTest, RetractedRequestsComputeAllAgain) {
  const auto a = add(1), b = add(2);
  steps(10);
  harness_.switch_weights({.version = 2, .policy = InFlightPolicy::kRetract});
  harness_.run();
  for (const auto& request : {a, b}) {
    const Outcome& out = outcome(request.id.value);
    EXPECT_EQ(out.tokens.size(), 30u);
    EXPECT_EQ(out.versions.back(), 2u);
    EXPECT_EQ(out.usage.retractions, 1);
    expect_text(request, out, true);
  }
  harness_.expect_clean_end();
}

TEST_F(WeightSwitchTest, AbortedRequestsEndAtOnceAndLaterOnesAreServed) {
  add(1);
  steps(10);
  harness_.switch_weights({.version = 2, .policy = InFlightPolicy::kAbort});
  ASSERT_TRUE(outcome(1).finish.has_value());
  EXPECT_EQ(outcome(1).finish->reason, wire::FinishReason::kAborted);
  const auto later = add(2);
  harness_.run();
  EXPECT_EQ(outcome(2).versions, std::vector<uint64_t>(30, 2));
  expect_text(later, outcome(2), false);
  harness_.expect_clean_end();
}

TEST_F(WeightSwitchTest, AnIdleEngineSwitchesWithoutARequest) {
  harness_.switch_weights({.version = 2});
  harness_.step();
  EXPECT_FALSE(harness_.scheduler.switch_pending());
  EXPECT_EQ(harness_.runner.weight_version, 2u);
  EXPECT_EQ(harness_.scheduler.facts().weight_version, 2u);
}

TEST_F(WeightSwitchTest, WhatIsNotStagedIsNotServed) {
  Scheduler::Deltas out;
  EXPECT_EQ(harness_.scheduler.switch_weights({.version = 2}, out).code(), StatusCode::kConflict);
  harness_.runner.staged = 3;
  EXPECT_EQ(harness_.scheduler.switch_weights({.version = 2}, out).code(), StatusCode::kConflict);
  add(1);
  steps(5);
  ASSERT_TRUE(harness_.scheduler.switch_weights({.version = 3, .policy = InFlightPolicy::kRetract}, out).ok());
  EXPECT_EQ(harness_.scheduler.switch_weights({.version = 3}, out).code(), StatusCode::kConflict);  // one at a time
  harness_.run();
  harness_.expect_clean_end();
}

// Books that name another version than the one that serves would fail every batch from then on.
TEST_F(WeightSwitchTest, WhatIsNotStagedAnyMoreIsNotSwitchedTo) {
  log_init("test", LogLevel::kOff);
  for (const uint64_t staged : {0, 3}) {
    const uint64_t id = 1 + staged;
    const auto request = add(id);
    steps(5);
    harness_.switch_weights({.version = 2, .policy = InFlightPolicy::kRetract});
    harness_.runner.staged = staged;
    harness_.run();
    EXPECT_FALSE(harness_.scheduler.switch_pending());
    EXPECT_EQ(harness_.scheduler.facts().weight_version, 1u);
    EXPECT_EQ(outcome(id).versions, std::vector<uint64_t>(30, 1));
    expect_text(request, outcome(id), true);
    harness_.expect_clean_end();
  }
}

// A runner that computes with other weights than the batch names would give wrong text under a right label.
TEST_F(WeightSwitchTest, AResultOfOtherWeightsFailsItsRequests) {
  log_init("test", LogLevel::kOff);
  add(1);
  steps(5);
  harness_.runner.weight_version = 5;
  harness_.step();
  ASSERT_TRUE(outcome(1).finish.has_value());
  EXPECT_EQ(outcome(1).finish->code, StatusCode::kInternal);
  EXPECT_NE(outcome(1).finish->message.find("weight version 5; wanted 1"), std::string::npos);
}

TEST_F(WeightSwitchTest, FlushFreesOldPagesAndElseTheyStay) {
  for (const bool flush : {false, true}) {
    const uint64_t version = flush ? 3 : 2;
    add(10 + version, 64, 2);
    harness_.run();
    const int32_t cached = harness_.scheduler.facts().pages_cached;
    ASSERT_GE(cached, 4);
    harness_.switch_weights({.version = version, .flush_cache = flush});
    harness_.step();
    EXPECT_EQ(harness_.scheduler.facts().pages_cached, flush ? 0 : cached);
  }
}

// A server that was started again from older weights numbers the next ones as those of before.
TEST_F(WeightSwitchTest, ANumberThatComesAgainFindsNoKvOfTheFirstTime) {
  const auto ask = [&](uint64_t id) {
    harness_.receive(Harness::request(id, prompt(64), 2));
    harness_.run();
    return outcome(id).usage.cached_tokens;
  };
  const auto serve = [&](uint64_t version) {
    harness_.switch_weights({.version = version});
    harness_.run();
  };
  serve(3);
  EXPECT_EQ(ask(1), 0);
  EXPECT_GT(ask(2), 0);
  serve(2);
  EXPECT_EQ(ask(3), 0);
  serve(3);
  EXPECT_EQ(ask(4), 0);
  EXPECT_GT(ask(5), 0);
  harness_.expect_clean_end();
}

// One that runs through both switches holds pages of the first time, which no other may find.
TEST_F(WeightSwitchTest, ANumberThatComesAgainTakesTheKvOfRunningRequestsAlong) {
  harness_.receive(Harness::request(1, prompt(64), 100));
  steps(10);
  for (const uint64_t version : {2, 1}) {
    harness_.switch_weights({.version = version});
    const std::size_t wanted = outcome(1).tokens.size() + 5;
    while (outcome(1).tokens.size() < wanted) harness_.step();
    EXPECT_EQ(harness_.runner.weight_version, version);
  }
  harness_.run();
  EXPECT_EQ(outcome(1).usage.retractions, 1);
  EXPECT_EQ(outcome(1).tokens.size(), 100u);
  harness_.expect_clean_end();
}

// The KV of the weights that go on serving stays.
TEST_F(WeightSwitchTest, ASwitchThatFailsKeepsTheCache) {
  log_init("test", LogLevel::kOff);
  add(1, 64, 2);
  harness_.run();
  const int32_t cached = harness_.scheduler.facts().pages_cached;
  harness_.switch_weights({.version = 2});
  harness_.runner.staged = 0;
  harness_.run();
  EXPECT_EQ(harness_.scheduler.facts().weight_version, 1u);
  EXPECT_EQ(harness_.scheduler.facts().pages_cached, cached);
}

TEST_F(WeightSwitchTest, PausedInPlaceKeepsItsPagesAndGoesOn) {
  const auto request = add(1);
  steps(10);
  harness_.pause(InFlightPolicy::kInPlace);
  harness_.run();  // until what was in flight is settled
  const std::size_t seen = outcome(1).tokens.size();
  const SchedulerFacts facts = harness_.scheduler.facts();
  EXPECT_TRUE(facts.paused);
  EXPECT_EQ(facts.running, 1);
  EXPECT_GT(facts.pages_held + facts.pages_locked, 0);
  add(2);  // waits
  steps(5);
  EXPECT_EQ(outcome(1).tokens.size(), seen);
  harness_.switch_weights({.version = 2});
  harness_.step();
  EXPECT_EQ(harness_.runner.weight_version, 2u);
  EXPECT_EQ(outcome(1).tokens.size(), seen);
  harness_.scheduler.resume();
  harness_.run();
  EXPECT_EQ(outcome(1).usage.retractions, 0);
  EXPECT_EQ(outcome(1).versions[seen - 1], 1u);
  EXPECT_EQ(outcome(1).versions[seen], 2u);
  EXPECT_EQ(outcome(2).versions, std::vector<uint64_t>(30, 2));
  expect_text(request, outcome(1), false);
  harness_.expect_clean_end();
}

TEST_F(WeightSwitchTest, PausedByRetractionHoldsNoPagesAndMayBeFlushed) {
  const auto request = add(1, 40);
  steps(10);
  EXPECT_EQ(harness_.scheduler.flush_cache().code(), StatusCode::kConflict);
  harness_.pause(InFlightPolicy::kRetract);
  harness_.run();
  SchedulerFacts facts = harness_.scheduler.facts();
  EXPECT_EQ(facts.running, 0);
  EXPECT_EQ(facts.waiting, 1);
  EXPECT_EQ(facts.pages_held, 0);
  EXPECT_GT(facts.pages_cached, 0);
  EXPECT_TRUE(harness_.scheduler.flush_cache().ok());
  EXPECT_EQ(harness_.scheduler.facts().pages_cached, 0);
  harness_.scheduler.resume();
  harness_.run();
  EXPECT_EQ(outcome(1).usage.retractions, 1);
  expect_text(request, outcome(1), false);
  harness_.expect_clean_end();
}

TEST_F(WeightSwitchTest, AbortsAndEndsReachPausedRequests) {
  add(1);
  add(2);
  steps(4);
  harness_.pause(InFlightPolicy::kInPlace);
  harness_.run();
  harness_.abort(1);
  EXPECT_TRUE(outcome(1).finish.has_value());
  harness_.pause(InFlightPolicy::kAbort);
  EXPECT_EQ(outcome(2).finish->reason, wire::FinishReason::kAborted);
  harness_.scheduler.resume();
  harness_.expect_clean_end();
}

// Many switches under many requests of all policies: every token is that of its version.
TEST(WeightSwitches, TextAcrossManySwitchesIsExact) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const bool retract = random() % 2 == 0;
    SchedulerOptions options;
    options.overlap = random() % 4 != 0;
    options.chunked_prefill_tokens = random() % 2 == 0 ? 512 : 8;
    Harness harness(kRoomy, options, endless());
    std::map<uint64_t, wire::TokenizedRequest> requests;
    uint64_t version = 1;
    for (uint64_t turn = 0; turn < 60; ++turn) {
      if (turn % 6 == 0) {
        const uint64_t id = turn / 6 + 1;
        const auto request = Harness::request(id, prompt(5, static_cast<int32_t>(id * 31)), 25);
        requests.emplace(id, request);
        harness.receive(request);
      }
      if (random() % 7 == 0 && !harness.scheduler.switch_pending()) {
        harness.switch_weights({.version = ++version,
                                .policy = retract ? InFlightPolicy::kRetract : InFlightPolicy::kInPlace,
                                .flush_cache = random() % 2 == 0});
      }
      harness.step();
    }
    harness.run();
    harness.expect_clean_end();
    for (const auto& [id, request] : requests) expect_text(request, harness.outcomes.at(id), retract);
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace millrace
