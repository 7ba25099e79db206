// The loss of all KV bytes (Runner::kv_epoch), on the fake runner.
#include <gtest/gtest.h>

#include <map>

#include "base/log.h"
#include "scheduler/settle.h"
#include "scheduler/testing/world.h"

namespace millrace {
namespace {

using testing::chain;
using testing::endless;
using testing::Harness;
using testing::kRoomy;
using testing::predict;
using testing::prompt;
using testing::World;
using testing::WorldCounts;
using testing::WorldRunner;

// Invariant: whatever is lost at whatever moment, every request ends once, no text is wrong, and the books balance.
TEST(KvLoss, UnderLoadEveryRequestEndsOnceAndNoTextIsWrong) {
  log_init("test", LogLevel::kOff);
  for (const WorldRunner runner : {WorldRunner{2, true, 25}, WorldRunner{3, false, 25}, WorldRunner{5, false, 20}}) {
    WorldCounts n;
    for (uint64_t seed = 1; seed <= 600; ++seed) {
      SCOPED_TRACE("depth " + std::to_string(runner.depth) + ", seed " + std::to_string(seed));
      World(seed, runner).run(n);
      if (HasFailure()) return;
    }
    EXPECT_GT(n.kv_losses, 500u);
    EXPECT_GT(n.lost, 200u);
    EXPECT_GT(n.lengths + n.stopped, 500u);
    EXPECT_GT(n.host_tokens, 20u);
  }
}

TEST(KvLoss, WhatWasInFlightIsComputedAgainAsAllElse) {
  Harness h(chain(3), {}, endless());
  std::map<uint64_t, wire::TokenizedRequest> requests;
  for (uint64_t id = 1; id <= 8; ++id) {
    requests[id] = Harness::request(id, prompt(20, static_cast<int32_t>(id) * 60), 30);
    h.receive(requests[id]);
  }
  for (int i = 0; i < 6; ++i) h.step();
  ASSERT_EQ(h.scheduler.facts().in_flight, 1);  // of two micro-batches one has just come back
  h.runner.lose_kv();
  h.step();
  EXPECT_EQ(h.scheduler.facts().kv_losses, 1u);
  EXPECT_EQ(h.scheduler.facts().pages_cached, 0);
  EXPECT_EQ(h.scheduler.facts().running, 0);
  h.run();
  for (const auto& [id, request] : requests) {
    const testing::Outcome& outcome = h.outcomes.at(id);
    EXPECT_EQ(outcome.tokens, predict(request, endless(), 1, 256).tokens);
    EXPECT_EQ(outcome.usage.retractions, 1);
  }
  h.expect_clean_end();
}

// A request that was in flight at every loss may be what kills the range.
TEST(KvLoss, ARequestThatWasInFlightAtTooManyLossesEnds) {
  Harness h(chain(3), {}, endless());
  h.receive(Harness::request(1, prompt(20), 60));
  for (int loss = 1; loss <= kMaxKvLosses; ++loss) {
    ASSERT_FALSE(h.outcomes.at(1).finish) << loss;
    h.step();
    h.runner.on_poll = [&] { h.runner.lose_kv(); };
    h.step();
    EXPECT_EQ(h.scheduler.facts().kv_losses, static_cast<uint64_t>(loss));
  }
  h.run();
  ASSERT_TRUE(h.outcomes.at(1).finish);
  EXPECT_EQ(h.outcomes.at(1).finish->code, StatusCode::kUnavailable);
  h.expect_clean_end();
}

TEST(KvLoss, NothingIsPlannedWhileTheRunnerRecovers) {
  Harness h(chain(3), {}, endless());
  const wire::TokenizedRequest request = Harness::request(1, prompt(20), 20);
  h.receive(request);
  for (int i = 0; i < 4; ++i) h.step();
  h.runner.lose_kv();
  h.runner.recovers = true;
  h.step();
  const uint64_t steps = h.scheduler.facts().steps;
  EXPECT_FALSE(h.step());  // idle, though a request waits
  h.receive(Harness::request(2, prompt(8), 4));
  EXPECT_FALSE(h.step());
  EXPECT_EQ(h.scheduler.facts().steps, steps);
  h.runner.recovers = false;
  h.run();
  EXPECT_EQ(h.outcomes.at(1).tokens, predict(request, endless(), 1, 256).tokens);
  h.expect_clean_end();
}

// The result that is polled together with the new epoch is good, but the KV behind it is gone.
TEST(KvLoss, AResultOfBeforeIsGoodAndItsSequenceIsComputedAgain) {
  Harness h(chain(3), {}, endless());
  const wire::TokenizedRequest request = Harness::request(1, prompt(40), 20);
  h.receive(request);
  for (int i = 0; i < 5; ++i) h.step();
  const std::size_t before = h.outcomes.at(1).tokens.size();
  h.runner.on_poll = [&] { h.runner.lose_kv(1); };
  h.step();
  EXPECT_EQ(h.outcomes.at(1).tokens.size(), before + 1);
  EXPECT_EQ(h.scheduler.facts().pages_free, kRoomy.page_count);
  h.run();
  EXPECT_EQ(h.outcomes.at(1).tokens, predict(request, endless(), 1, 256).tokens);
  EXPECT_EQ(h.outcomes.at(1).usage.retractions, 1);
  h.expect_clean_end();
}

TEST(KvLoss, NothingCachedIsFoundAfterItNorInTheHostTier) {
  RunnerFacts facts{1000, 256, 16, 16};
  facts.host_page_count = 64;
  Harness h(facts, {.cache = {.write_policy = WritePolicy::kWriteThrough}}, endless());
  const auto ask = [&](uint64_t id) {
    const wire::TokenizedRequest request = Harness::request(id, prompt(100, 100), 4);
    h.receive(request);
    h.run();
    EXPECT_EQ(h.outcomes.at(id).tokens, predict(request, endless(), 1, 256).tokens);
    return h.outcomes.at(id).usage.cached_tokens;
  };
  EXPECT_EQ(ask(1), 0);
  EXPECT_EQ(ask(2), 96);
  h.receive(Harness::request(3, prompt(200, 500), 4));  // sends the first prompt to the host tier
  h.run();
  EXPECT_GT(h.scheduler.facts().host_pages_used, 0);
  h.runner.lose_kv();
  EXPECT_EQ(ask(4), 0);
  EXPECT_EQ(ask(5), 96);
  EXPECT_EQ(h.scheduler.facts().kv_losses, 1u);
  h.expect_clean_end();
}

TEST(KvLoss, InAPauseWhatRunsIsComputedAgainAfterIt) {
  Harness h(chain(3), {}, endless());
  const wire::TokenizedRequest request = Harness::request(1, prompt(40), 20);
  h.receive(request);
  for (int i = 0; i < 5; ++i) h.step();
  h.pause(InFlightPolicy::kInPlace);
  h.run();
  h.runner.lose_kv();
  h.step();
  EXPECT_EQ(h.scheduler.facts().pages_free, kRoomy.page_count);
  h.scheduler.resume();
  h.run();
  EXPECT_EQ(h.outcomes.at(1).tokens, predict(request, endless(), 1, 256).tokens);
  h.expect_clean_end();
}

}  // namespace
}  // namespace millrace
