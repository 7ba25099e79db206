// Seeded random workloads on the fake runner. The oracle is HashModel (testing/world.h).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <random>
#include <tuple>

#include "base/log.h"
#include "scheduler/testing/world.h"

namespace millrace {
namespace {

using testing::Harness;
using testing::HashModel;
using testing::World;
using testing::WorldCounts;

// Invariants: one request, one end; the same bits; no wrong text; true errors; books balance.
TEST(Workload, EveryRequestEndsOnceWithThePredictedText) {
  log_init("test", LogLevel::kOff);  // the faults are on purpose
  WorldCounts n;
  for (uint64_t seed = 1; seed <= 2000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    World(seed).run(n);
    if (::testing::Test::HasFailure()) return;
  }
  const std::tuple<const char*, uint64_t, uint64_t> wanted[] = {{"retractions", n.retractions, 300},
                                                                {"preempted", n.preempted, 100},
                                                                {"deferred", n.deferred, 300},
                                                                {"cached tokens", n.cached_tokens, 10000},
                                                                {"host tokens", n.host_tokens, 500},
                                                                {"wasted rows", n.wasted_rows, 500},
                                                                {"bubbles", n.bubbles, 100},
                                                                {"worlds with two in flight", n.full_depth, 1000},
                                                                {"stopped", n.stopped, 500},
                                                                {"length", n.lengths, 500},
                                                                {"aborted", n.aborted, 100},
                                                                {"at the end of the pool", n.pool_ends, 100},
                                                                {"rejected", n.rejected, 100},
                                                                {"dropped for a better one", n.dropped, 20},
                                                                {"deadlines", n.deadlines, 100},
                                                                {"conflicts", n.conflicts, 20},
                                                                {"faults", n.faults, 100},
                                                                {"under new weights", n.new_weights, 100},
                                                                {"under old weights", n.old_weights, 5000},
                                                                {"prompt logprobs", n.scored, 5000},
                                                                {"ids that came again", n.came_again, 100},
                                                                {"in forced runs", n.forced, 1000}};
  for (const auto& [what, count, least] : wanted) {
    std::printf("%s %lu, ", what, count);
    EXPECT_GT(count, least) << what;
  }
  std::printf("\n");
}

// The same eight requests in many arrival orders and configurations say the same.
TEST(Workload, TokensDoNotDependOnOrderCacheChunksOrMemory) {
  std::mt19937_64 random(5);
  std::vector<wire::TokenizedRequest> requests;
  std::vector<int32_t> prompt;
  for (uint64_t id = 1; id <= 8; ++id) {
    for (int i = 0; i < 9; ++i) prompt.push_back(static_cast<int32_t>(random() % 200));
    requests.push_back(Harness::request(id, prompt, 30));
  }
  std::map<uint64_t, std::vector<int32_t>> first;
  uint64_t retractions = 0;
  for (int variant = 0; variant < 96; ++variant) {
    SCOPED_TRACE("variant " + std::to_string(variant));
    RunnerFacts facts{200, 128, variant % 3 == 0 ? 1 : variant % 3 == 1 ? 4 : 16, 0};
    const bool tight = variant % 2 == 0;
    facts.page_count = (tight ? 128 : 1024) / facts.page_size;
    SchedulerOptions options;
    options.prefix_cache = variant % 4 < 2;
    options.chunked_prefill_tokens = variant % 5 == 0 ? 7 : 512;
    options.overlap = variant % 7 < 4;
    options.policy = static_cast<Policy>(variant % 6);
    HashModel model;
    model.vocab_size = 200;
    Harness harness(facts, options, model);
    std::ranges::shuffle(requests, random);
    for (const wire::TokenizedRequest& request : requests) {
      harness.receive(request);
      if (random() % 2 == 0) harness.step();
    }
    harness.run();
    harness.expect_clean_end();
    retractions += harness.scheduler.facts().retractions;
    for (const auto& [id, outcome] : harness.outcomes) {
      const auto [it, is_first] = first.emplace(id, outcome.tokens);
      ASSERT_EQ(it->second, outcome.tokens) << "request " << id;
    }
  }
  EXPECT_GT(retractions, 0u);
}

}  // namespace
}  // namespace millrace
