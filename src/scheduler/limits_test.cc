// Deadlines, the planner that keeps decode gaps short, flushing, and the facts.
#include <gtest/gtest.h>

#include "scheduler/step_cost.h"
#include "scheduler/testing/harness.h"

namespace millrace {
namespace {

using testing::endless;
using testing::Harness;
using testing::kRoomy;
using testing::prompt;

// ---- deadlines ------------------------------------------------------------------------------------------------------

struct Clocked {
  explicit Clocked(SchedulerOptions options = {}) : h(kRoomy, with_clock(std::move(options)), endless()) {}
  SchedulerOptions with_clock(SchedulerOptions options) {
    options.now_us = [this] { return now_us; };
    return options;
  }
  int64_t now_us = 5'000'000;
  Harness h;
};

TEST(Deadline, EndsARunningRequestWithLimitAndValue) {
  Clocked c;
  wire::TokenizedRequest request = Harness::request(1, prompt(20), 200);
  request.timeout_ms = 100;
  c.h.receive(request);
  for (int i = 0; i < 5; ++i) c.h.step();
  c.now_us += 99'999;
  c.h.step();
  EXPECT_FALSE(c.h.outcomes.at(1).finish);
  c.now_us += 2'501;
  c.h.step();
  EXPECT_EQ(c.h.outcomes.at(1).finish->code, StatusCode::kDeadline);
  EXPECT_EQ(c.h.outcomes.at(1).finish->message,
            "the request was not done for 102 ms; its limit (timeout_ms) is 100 ms");
  EXPECT_GE(c.h.outcomes.at(1).tokens.size(), 4u);
  c.h.run();
  EXPECT_EQ(c.h.scheduler.facts().deadline, 1u);
  c.h.expect_clean_end();
}

// Invariant: a deadline is told while the runner hangs.
TEST(Deadline, IsToldWhileTheRunnerDoesNotAnswer) {
  Clocked c;
  c.h.runner.polls_per_step = 1000;
  wire::TokenizedRequest request = Harness::request(1, prompt(20), 200);
  request.timeout_ms = 100;
  c.h.receive(request);
  c.h.step();
  c.now_us += 200'000;
  c.h.step();
  EXPECT_EQ(c.h.outcomes.at(1).finish->code, StatusCode::kDeadline);
  EXPECT_TRUE(c.h.scheduler.busy());
  c.h.run();
  c.h.expect_clean_end();
}

TEST(Deadline, OfTheQueueEndsWithTheFirstAdmission) {
  SchedulerOptions options;
  options.max_running_requests = 1;
  Clocked c(options);
  for (uint64_t id : {1, 2}) {
    wire::TokenizedRequest request = Harness::request(id, prompt(20), 50);
    request.queue_timeout_ms = 10;
    c.h.receive(request);
  }
  c.now_us += 7'000;
  c.h.step();
  c.now_us += 7'000;
  c.h.run();
  EXPECT_EQ(c.h.outcomes.at(1).tokens.size(), 50u);
  EXPECT_DOUBLE_EQ(c.h.outcomes.at(1).usage.queue_seconds, 0.007);
  EXPECT_EQ(c.h.outcomes.at(2).finish->message,
            "the request waited for its first step for 14 ms; its limit (queue_timeout_ms) is 10 ms");
  c.h.expect_clean_end();
}

TEST(Deadline, EqualOnesAndAbsurdlyLateOnes) {
  Clocked c;
  wire::TokenizedRequest request = Harness::request(1, prompt(20), 5);
  request.timeout_ms = request.queue_timeout_ms = 10;
  c.h.receive(request);
  request.id = ReqId{2};
  request.timeout_ms = request.queue_timeout_ms = INT64_MAX;
  c.h.receive(request);
  c.h.step();
  c.now_us += 50'000;
  c.h.run();
  EXPECT_EQ(c.h.outcomes.at(1).finish->code, StatusCode::kDeadline);
  EXPECT_EQ(c.h.outcomes.at(2).tokens.size(), 5u);
  c.h.expect_clean_end();
}

// ---- the cost of a step ---------------------------------------------------------------------------------------------

TEST(StepCost, LearnsALineAndForgetsAnOldOne) {
  StepCost cost;
  EXPECT_EQ(cost.rows_within(1000, 512), 512);  // nothing known: no bound
  for (int rows : {4, 200, 4, 64, 4, 128, 16}) cost.observe(rows, 2000 + 30 * rows);
  EXPECT_NEAR(cost.fixed_us(), 2000, 1);
  EXPECT_NEAR(cost.per_row_us(), 30, 0.01);
  EXPECT_EQ(cost.rows_within(5015, 512), 100);
  EXPECT_EQ(cost.rows_within(1000, 512), 0);
  for (int i = 0; i < 60; ++i) cost.observe(i % 2 == 0 ? 4 : 80, 4000 + 100 * (i % 2 == 0 ? 4 : 80));
  EXPECT_NEAR(cost.predict_us(40), 8000, 400);
}

TEST(StepCost, StepsOfOneSizeGiveNoSlopeAndAreTakenAsProportional) {
  StepCost cost;
  for (int i = 0; i < 50; ++i) cost.observe(8, 4000);
  EXPECT_NEAR(cost.per_row_us(), 500, 1e-6);
  EXPECT_NEAR(cost.fixed_us(), 0, 1e-6);
}

// Invariant: while a request decodes, steps stay within the target as soon as the cost is known, and prefills go on.
TEST(DecodeGap, PrefillsAreCutSoThatStepsStayWithinTheTarget) {
  for (int32_t slower : {1, 4}) {
    SchedulerOptions options;
    options.chunked_prefill_tokens = 512;
    options.max_decode_gap_ms = 10;
    Harness h({1000, 8000, 16, 2000}, options, endless());
    std::vector<std::pair<int64_t, int64_t>> steps;  // microseconds, rows of prefills
    h.runner.compute_us = [&](const Batch& batch) {
      int64_t rows = 0;
      int64_t prefill = 0;
      for (const SequenceStep& step : batch.sequences) {
        rows += static_cast<int64_t>(step.tokens.size());
        if (step.tokens.size() > 1) prefill += static_cast<int64_t>(step.tokens.size());
      }
      const int64_t us = slower * (1000 + 20 * rows);
      steps.emplace_back(us, prefill);
      return us;
    };
    for (uint64_t id = 1; id <= 4; ++id) h.receive(Harness::request(id, prompt(4, static_cast<int32_t>(id)), 400));
    for (int i = 0; i < 20; ++i) h.step();
    h.receive(Harness::request(9, prompt(7000), 1));
    const std::size_t begin = steps.size();
    while (!h.outcomes[9].finish) h.step();
    int64_t longest = 0;
    int64_t most = 0;
    for (std::size_t i = begin + 6; i < steps.size(); ++i) {  // the first few teach the slope
      longest = std::max(longest, steps[i].first);
      most = std::max(most, steps[i].second);
    }
    EXPECT_LE(longest, 10'000);
    EXPECT_GE(longest, 9'000);  // and the room is used
    EXPECT_LE(most, slower == 1 ? 446 : 71);
    h.run();
    h.expect_clean_end();
  }
}

TEST(DecodeGap, NeverStarvesPrefillsHoweverSlowTheMachine) {
  SchedulerOptions options;
  options.max_decode_gap_ms = 1;
  Harness h({1000, 8000, 16, 2000}, options, endless());
  h.runner.compute_us = [](const Batch&) { return int64_t{50'000}; };
  h.receive(Harness::request(1, prompt(4), 300));
  h.step();
  h.receive(Harness::request(2, prompt(800, 300), 1));
  h.run();
  EXPECT_LE(h.outcomes.at(2).at_steps.at(0), 4u + 800u / static_cast<unsigned>(kMinPrefillTokens));
  h.expect_clean_end();
}

TEST(DecodeGap, NobodyDecodesSoThereIsNoGap) {
  SchedulerOptions options;
  options.max_decode_gap_ms = 1;
  Harness h({1000, 8000, 16, 2000}, options, endless());
  h.runner.compute_us = [](const Batch&) { return int64_t{50'000}; };
  h.receive(Harness::request(1, prompt(5120), 1));
  h.run();
  EXPECT_EQ(h.scheduler.facts().steps, 10u);
}

// ---- admin and facts ------------------------------------------------------------------------------------------------

TEST(FlushCache, OnlyWhenIdleAndThenNothingIsFound) {
  Harness h({1000, 256, 16, 64, 64}, {}, endless());
  h.receive(Harness::request(1, prompt(40), 4));
  h.step();
  EXPECT_EQ(h.scheduler.flush_cache().message(), "the cache is only flushed while idle; 1 requests run and 0 wait");
  EXPECT_EQ(h.scheduler.flush_cache().code(), StatusCode::kConflict);
  h.run();
  EXPECT_EQ(h.scheduler.facts().pages_cached, 2);
  EXPECT_TRUE(h.scheduler.flush_cache().ok());
  EXPECT_EQ(h.scheduler.facts().pages_cached, 0);
  EXPECT_EQ(h.scheduler.facts().host_pages_used, 0);
  EXPECT_EQ(h.scheduler.facts().pages_free, 64);
  h.receive(Harness::request(2, prompt(40), 4));
  h.run();
  EXPECT_EQ(h.outcomes.at(2).usage.cached_tokens, 0);
  h.expect_clean_end();
}

TEST(HostTier, WhatWasEvictedComesBackAndIsCounted) {
  SchedulerOptions options;
  options.cache.min_load_tokens = 1;
  Harness h({1000, 256, 16, 12, 64}, options, endless());
  for (uint64_t id = 1; id <= 6; ++id) {
    h.receive(Harness::request(id, prompt(100, static_cast<int32_t>(id % 3) * 200), 4));
    h.run();
  }
  EXPECT_EQ(h.outcomes.at(4).usage.cached_tokens, 96);
  EXPECT_GT(h.outcomes.at(4).usage.host_tokens, 0);
  EXPECT_GT(h.scheduler.facts().evicted_tokens, 0u);
  EXPECT_EQ(h.scheduler.facts().host_pages_total, 64);
  EXPECT_GT(h.runner.copies, 0u);
  for (uint64_t id = 4; id <= 6; ++id) EXPECT_NE(h.outcomes.at(id).tokens.size(), 0u);
  h.expect_clean_end();
}

TEST(QueueFacts, AddUp) {
  Harness h(kRoomy, {}, endless());
  h.runner.compute_us = [](const Batch&) { return int64_t{700}; };
  for (uint64_t id = 1; id <= 4; ++id) h.receive(Harness::request(id, prompt(20, static_cast<int32_t>(50 * id)), 10));
  for (int i = 0; i < 4; ++i) h.step();
  EXPECT_EQ(h.scheduler.facts().used_tokens, 4 * 32);
  h.abort(4);
  h.run();
  const SchedulerFacts facts = h.scheduler.facts();
  EXPECT_EQ(facts.accepted, 4u);
  EXPECT_EQ(facts.admitted, 4u);
  EXPECT_EQ(facts.aborted, 1u);
  EXPECT_EQ(facts.prompt_tokens, 80u);
  EXPECT_EQ(facts.prefill_rows, 80u);
  EXPECT_EQ(facts.generated_tokens, 30u + h.outcomes.at(4).tokens.size());
  EXPECT_EQ(facts.compute_us, 700 * facts.steps);
  EXPECT_EQ(facts.used_tokens, 0);
  EXPECT_EQ(facts.weight_version, 1u);
  h.expect_clean_end();
}

}  // namespace
}  // namespace millrace
