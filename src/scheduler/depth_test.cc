// Runners of other depths than 2, and chains: runners that know no token in flight. The same texts, and micro-batches
// of equal size.
#include <gtest/gtest.h>

#include <map>

#include "base/log.h"
#include "scheduler/share.h"
#include "scheduler/testing/world.h"

namespace millrace {
namespace {

using testing::chain;
using testing::endless;
using testing::Harness;
using testing::predict;
using testing::prompt;
using testing::World;
using testing::WorldCounts;

// Sequences that get one row, in each batch that has been submitted.
std::vector<std::size_t> decodes_of(const std::vector<Batch>& batches) {
  std::vector<std::size_t> counts;
  for (const Batch& batch : batches) {
    counts.push_back(static_cast<std::size_t>(
        std::ranges::count_if(batch.sequences, [](const SequenceStep& step) { return step.tokens.size() == 1; })));
  }
  return counts;
}

// Invariant: the same bits at every depth, with every policy, fault, switch, pause, abort and memory shortage.
TEST(Depth, RandomWorldsGiveThePredictedTextAtEveryDepth) {
  log_init("test", LogLevel::kOff);  // the faults are on purpose
  for (const bool token_in_flight : {true, false}) {
    for (const int32_t depth : {1, 2, 3, 5}) {
      WorldCounts n;
      for (uint64_t seed = 1; seed <= 400; ++seed) {
        SCOPED_TRACE("token in flight " + std::to_string(token_in_flight) + ", depth " + std::to_string(depth) +
                     ", seed " + std::to_string(seed));
        World(seed, {.depth = depth, .token_in_flight = token_in_flight}).run(n);
        if (HasFailure()) return;
      }
      EXPECT_GT(n.full_depth, 50u);
      EXPECT_GT(n.retractions, 50u);
      EXPECT_GT(n.preempted, 10u);
      EXPECT_GT(n.aborted, 20u);
      EXPECT_GT(n.new_weights, 20u);
      EXPECT_GT(n.stopped, 100u);
      EXPECT_EQ(n.kv_losses, 0u);
    }
  }
}

TEST(Depth, DecodesAreSharedOverOneMicroBatchLessThanTheDepth) {
  const auto expect = [](int32_t decoding, int32_t depth, int32_t batches, int32_t rows) {
    const DecodeShares shares = share_decodes(decoding, depth);
    EXPECT_EQ(shares.batches, batches) << decoding << " decodes, depth " << depth;
    EXPECT_EQ(shares.rows, rows) << decoding << " decodes, depth " << depth;
  };
  expect(32, 3, 2, 16);
  expect(33, 3, 2, 17);
  expect(32, 5, 4, 8);
  expect(256, 64, 63, 5);
  expect(3, 3, 1, 3);  // few make one batch
  expect(4, 3, 2, 2);
  expect(5, 5, 2, 3);
  expect(32, 2, 1, 32);
  expect(32, 1, 1, 32);
  expect(0, 3, 1, 1);
}

// Invariant: a sequence is in one batch only from the row that samples to the return of its token.
TEST(Depth, NoSequenceHasARowBesideOneThatSamples) {
  for (const int32_t depth : {1, 2, 3, 5}) {
    Harness h(chain(depth), {.chunked_prefill_tokens = 32}, endless());
    std::map<uint64_t, std::size_t> known;  // tokens that had come when the request was last to sample
    h.runner.on_submit = [&](const Batch& batch) {
      for (const SequenceStep& step : batch.sequences) {
        if (!step.sample) continue;
        const std::size_t come = h.outcomes[step.request.value].tokens.size();
        const auto [last, first] = known.emplace(step.request.value, come);
        EXPECT_TRUE(first || last->second + 1 == come) << "request " << step.request.value << " depth " << depth;
        last->second = come;
      }
    };
    for (uint64_t id = 1; id <= 12; ++id) {
      h.receive(Harness::request(id, prompt(9 * static_cast<int32_t>(id), static_cast<int32_t>(id) * 60), 20));
    }
    h.run();
    for (const auto& [id, outcome] : h.outcomes) EXPECT_EQ(outcome.tokens.size(), 20u);
    EXPECT_EQ(h.scheduler.facts().wasted_rows, 0u);
    EXPECT_EQ(h.runner.most_in_flight, depth);
    h.expect_clean_end();
  }
}

// Invariant: the ranges of a chain have equal work, though the requests came at different times.
TEST(Depth, MicroBatchesBecomeEqual) {
  for (const int32_t depth : {3, 5}) {
    Harness h(chain(depth), {}, endless());
    std::vector<Batch> submitted;
    h.runner.on_submit = [&](const Batch& batch) { submitted.push_back(batch); };
    for (uint64_t id = 1; id <= 30; ++id) {
      h.receive(Harness::request(id, prompt(5, static_cast<int32_t>(id) * 9), 60));
      if (id % 4 == 0) h.step();
    }
    for (int i = 0; i < 4 * depth; ++i) h.step();
    submitted.clear();
    for (int i = 0; i < 8 * depth; ++i) h.step();
    const std::size_t ranges = static_cast<std::size_t>(depth - 1);
    ASSERT_GE(submitted.size(), 8 * ranges);
    for (const std::size_t decodes : decodes_of(submitted)) {
      EXPECT_LE(decodes, (30 + ranges - 1) / ranges);
      EXPECT_GE(decodes, 30 / ranges - 1);
    }
    h.run();
    h.expect_clean_end();
  }
}

// Those that have waited longest go first: one whose token is back and that gets no row has had one later than all in
// the batch. Six requests are in small micro-batches when 34 others come at once.
TEST(Depth, DecodesTakeTurns) {
  Harness h(chain(5), {}, endless());
  std::map<uint64_t, uint64_t> last;        // the newest batch that samples for each request
  std::map<uint64_t, std::size_t> to_come;  // tokens that it will have then
  uint64_t left_out = 0;
  h.runner.on_submit = [&](const Batch& batch) {
    uint64_t newest = 0;
    for (const SequenceStep& step : batch.sequences) {
      if (step.sample && step.tokens.size() == 1) newest = std::max(newest, last[step.request.value]);
    }
    for (const SequenceStep& step : batch.sequences) {
      last[step.request.value] = batch.step;
      to_come[step.request.value] = h.outcomes[step.request.value].tokens.size() + 1;
    }
    for (const auto& [id, step] : last) {
      if (newest == 0 || step == batch.step || h.outcomes[id].tokens.size() < to_come[id] || h.outcomes[id].finish)
        continue;
      ++left_out;
      EXPECT_GE(step, newest) << "request " << id << " waits longer than one of step " << batch.step;
    }
  };
  for (uint64_t id = 1; id <= 40; ++id) {
    if (id == 7) {
      for (int i = 0; i < 12; ++i) h.step();
    }
    h.receive(Harness::request(id, prompt(5, static_cast<int32_t>(id) * 9), 50));
  }
  while (h.outcomes.at(40).tokens.size() < 20) h.step();
  EXPECT_GT(left_out, 10u);
  h.run();
  h.expect_clean_end();
}

TEST(Depth, FewDecodesMakeOneBatch) {
  Harness h(chain(5), {}, endless());
  std::vector<Batch> submitted;
  h.runner.on_submit = [&](const Batch& batch) { submitted.push_back(batch); };
  for (uint64_t id = 1; id <= 3; ++id) h.receive(Harness::request(id, prompt(5, static_cast<int32_t>(id) * 9), 10));
  h.run();
  EXPECT_EQ(submitted.size(), 10u);
  h.expect_clean_end();
}

// KV is causal: one long prompt fills the chain. Decodes go beside its chunks.
TEST(Depth, ChunksOfOnePromptAreAllInFlight) {
  Harness h(chain(5), {.chunked_prefill_tokens = 32}, endless());
  h.receive(Harness::request(1, prompt(5, 700), 40));
  h.step();
  std::vector<Batch> submitted;
  h.runner.on_submit = [&](const Batch& batch) { submitted.push_back(batch); };
  const wire::TokenizedRequest request = Harness::request(2, prompt(200), 3);
  h.receive(request);
  h.step();
  EXPECT_EQ(submitted.size(), 5u);
  for (const Batch& batch : submitted) EXPECT_EQ(batch.sequences.back().request, ReqId{2});
  EXPECT_EQ(decodes_of(submitted), (std::vector<std::size_t>{1, 0, 0, 0, 0}));
  EXPECT_EQ(submitted.back().sequences.back().position, 31 + 3 * 32);
  h.run();
  EXPECT_EQ(h.outcomes.at(2).tokens, predict(request, endless(), 1, 256).tokens);
  h.expect_clean_end();
}

}  // namespace
}  // namespace millrace
