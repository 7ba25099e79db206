// What people see of a scheduler at a moment: requests in each state, steps, and pages that add up.
#include "scheduler/snapshot.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "scheduler/testing/harness.h"

namespace millrace {
namespace {

using testing::endless;
using testing::Harness;
using testing::kRoomy;
using testing::prompt;
using State = RequestSnapshot::State;

// Of every page once, and as many of each as the facts have.
void expect_pages_add_up(const SchedulerSnapshot& seen) {
  const SchedulerFacts& facts = seen.facts;
  ASSERT_EQ(seen.page_map.size(), static_cast<std::size_t>(facts.pages_total));
  const auto count = [&](char letter) { return static_cast<int32_t>(std::ranges::count(seen.page_map, letter)); };
  EXPECT_EQ(count('f'), facts.pages_free);
  EXPECT_EQ(count('c'), facts.pages_cached - facts.pages_locked);
  EXPECT_EQ(count('r'), facts.pages_locked);
  EXPECT_EQ(count('h'), facts.pages_held);
  EXPECT_EQ(count('i'), facts.pages_importing);
  EXPECT_EQ(count('f') + count('c') + count('r') + count('h') + count('i'), facts.pages_total);
}

TEST(Snapshot, RequestsInEachState) {
  int64_t now_us = 1'000'000;
  SchedulerOptions options{.max_running_requests = 2, .chunked_prefill_tokens = 32};
  options.now_us = [&] { return now_us; };
  Harness h(kRoomy, options, endless());
  h.receive(Harness::request(1, prompt(20), 50));
  for (int i = 0; i < 4; ++i) h.step();
  h.receive(Harness::request(2, prompt(120, 300), 50));
  h.receive(Harness::request(3, prompt(10, 600), 50));
  for (int i = 0; i < 2; ++i) h.step();
  now_us += 2'500'000;
  const SchedulerSnapshot seen = h.scheduler.snapshot();
  ASSERT_EQ(seen.requests.size(), 3u);
  EXPECT_EQ(seen.requests[0].id, ReqId{1});
  EXPECT_EQ(seen.requests[0].state, State::kDecoding);
  EXPECT_EQ(seen.requests[0].max_tokens, 50);
  EXPECT_EQ(seen.requests[0].output_tokens, static_cast<int32_t>(h.outcomes[1].tokens.size()));
  EXPECT_EQ(seen.requests[1].state, State::kPrefilling);
  EXPECT_EQ(seen.requests[1].to_compute, 120);
  EXPECT_GT(seen.requests[1].computed, 0);
  EXPECT_LT(seen.requests[1].computed, 120);
  EXPECT_EQ(seen.requests[2].state, State::kQueued);
  EXPECT_EQ(seen.requests[2].pages, 0);
  for (const RequestSnapshot& request : seen.requests) EXPECT_DOUBLE_EQ(request.age_s, 2.5);
  expect_pages_add_up(seen);
  h.abort(1);
  EXPECT_EQ(h.scheduler.snapshot().requests.front().id, ReqId{2});
  h.run();
  EXPECT_TRUE(h.scheduler.snapshot().requests.empty());
  h.expect_clean_end();
}

TEST(Snapshot, StepsHaveTheRowsThatWereComputed) {
  Harness h(kRoomy, {.chunked_prefill_tokens = 32}, endless());
  for (uint64_t id = 1; id <= 6; ++id) h.receive(Harness::request(id, prompt(60, static_cast<int32_t>(id) * 70), 40));
  h.run();
  const SchedulerSnapshot seen = h.scheduler.snapshot();
  ASSERT_LT(seen.facts.steps, kLoggedSteps);
  ASSERT_EQ(seen.steps.size(), seen.facts.steps);
  uint64_t prefill = 0, decode = 0;
  for (std::size_t i = 0; i < seen.steps.size(); ++i) {
    EXPECT_EQ(seen.steps[i].step, i + 1);
    EXPECT_GT(seen.steps[i].sequences, 0);
    prefill += static_cast<uint64_t>(seen.steps[i].prefill_rows);
    decode += static_cast<uint64_t>(seen.steps[i].decode_rows);
  }
  EXPECT_EQ(prefill, seen.facts.prefill_rows);
  EXPECT_EQ(decode, seen.facts.decode_rows);
}

TEST(Snapshot, TheLastStepsAreKept) {
  Harness h(kRoomy, {}, endless());
  h.receive(Harness::request(1, prompt(20), 200));
  h.run();
  const SchedulerSnapshot seen = h.scheduler.snapshot();
  ASSERT_EQ(seen.steps.size(), kLoggedSteps);
  EXPECT_EQ(seen.steps.back().step, seen.facts.steps);
  EXPECT_EQ(seen.steps.front().step, seen.facts.steps - kLoggedSteps + 1);
}

TEST(Snapshot, PagesAddUpInEveryStep) {
  Harness h(kRoomy, {.max_running_requests = 4, .chunked_prefill_tokens = 48}, endless());
  for (uint64_t id = 1; id <= 12; ++id) h.receive(Harness::request(id, prompt(40 + static_cast<int32_t>(id) * 5), 30));
  while (h.step()) expect_pages_add_up(h.scheduler.snapshot());
  const SchedulerSnapshot seen = h.scheduler.snapshot();
  expect_pages_add_up(seen);
  EXPECT_GT(std::ranges::count(seen.page_map, 'c'), 0);
  EXPECT_GT(seen.cache.nodes.size(), 1u);
}

TEST(Snapshot, ALargePoolHasNoMapAndManyRequestsAreCut) {
  RunnerFacts facts = kRoomy;
  facts.page_count = kMaxMappedPages + 1;
  Harness h(facts, {}, endless());
  for (uint64_t id = 1; id <= kMaxSnapshotRequests + 20; ++id) h.receive(Harness::request(id, prompt(10), 1));
  const SchedulerSnapshot seen = h.scheduler.snapshot();
  EXPECT_TRUE(seen.page_map.empty());
  EXPECT_EQ(seen.requests.size(), kMaxSnapshotRequests);
  EXPECT_EQ(seen.facts.waiting, static_cast<int32_t>(kMaxSnapshotRequests) + 20);
  h.run();
}

}  // namespace
}  // namespace millrace
