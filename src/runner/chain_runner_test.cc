// A chain of layer ranges: the same bits as one range, batches on top of each other, and what becomes of requests when
// ranges die, refuse, or get messages that are not theirs.
#include "runner/chain_runner.h"

#include <gtest/gtest.h>

#include <map>

#include "runner/testing/chain_fixture.h"

namespace millrace {
namespace {

class ChainRunnerTest : public ChainFixture {};

TEST_F(ChainRunnerTest, BatchesOnTopOfEachOtherGiveTheSameTokens) {
  const auto requests = make_requests(12, model_->config().vocab_size, 5);
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kI8}) {
    options_.kv_dtype = dtype;
    const auto wanted = one_after_the_other(*ModelRunner::make(model_, options_).value(), requests);
    for (int ranges = 2; ranges <= layers_; ++ranges) {
      auto split = chain(ranges);
      ASSERT_TRUE(complete(*split).ok());
      EXPECT_EQ(split->facts().depth, ranges + 1);
      EXPECT_FALSE(split->facts().token_in_flight);
      for (uint32_t seed = 1; seed <= 4; ++seed) {
        EXPECT_EQ(run_all(*split, requests, seed), wanted) << ranges << " ranges, seed " << seed;
      }
      EXPECT_EQ(split->kv_epoch(), 0u);
    }
  }
}

TEST_F(ChainRunnerTest, AFirstRangeOfNoLayersIsTheEmbeddingAndTheHeadAlone) {
  const auto requests = make_requests(6, model_->config().vocab_size, 6);
  auto split = chain(2);
  ASSERT_TRUE(complete(*split).ok());
  const auto wanted = run_all(*split, requests, 1);
  TestChain bare(model_, options_, {{0, 0}, {0, layers_}});
  ASSERT_TRUE(complete(bare).ok());
  step_ = 0;
  EXPECT_EQ(run_all(bare, requests, 2), wanted);
}

TEST_F(ChainRunnerTest, ARangeThatDiffersIsRefusedByName) {
  const std::vector<std::pair<std::function<void(RangeSlot&)>, std::string>> cases = {
      {[](RangeSlot& s) { s.facts.model_hash = 1; }, "range 1: the hash of the model is 1; wanted 24301"},
      {[](RangeSlot& s) { s.facts.kv_dtype = "BF16"; }, "range 1: the type of the KV cache is BF16; wanted F32"},
      {[](RangeSlot& s) { s.facts.page_count = 7; }, "range 1: the number of KV pages is 7; wanted 96"},
      {[](RangeSlot& s) { s.facts.isa = "other"; }, "range 1: the instruction set is other"},
      {[](RangeSlot& s) { s.facts.weight_version = 9; }, "range 1: the version of the weights is 9; wanted 1"},
      {[](RangeSlot& s) { s.ranges = 3; }, "range 1: the chain has 2 ranges; wanted 3"},
  };
  for (const auto& [change, part] : cases) {
    TestChain split(model_, options_, even_ranges(layers_, 2));
    ASSERT_TRUE(complete(split).ok());
    split.ranges.kill(1);
    split.ranges.start(1, change);
    Status status;  // OK until the loss is seen
    while (status.ok()) status = complete(split);
    EXPECT_EQ(status.code(), StatusCode::kConflict);
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  }
}

TEST_F(ChainRunnerTest, ARangeTakesThePagesOfTheFirstOneAndNoneForAnotherModel) {
  const auto requests = make_requests(6, model_->config().vocab_size, 8);
  const auto upper = range_of(model_, even_ranges(layers_, 2)[1]);
  std::atomic<int> made = 0;
  std::atomic<bool> fits = false;
  const auto learns = [&](RangeSlot& slot) {
    slot.facts.page_count = 7;
    slot.make_engine = [&](const wire::ChainFacts& first) -> Result<std::unique_ptr<LayerEngine>> {
      ++made;
      if (!fits) return error(StatusCode::kResourceExhausted, "{} pages do not fit", first.page_count);
      RunnerOptions options = options_;
      options.page_count = first.page_count;
      return LayerEngine::make(*upper, options);
    };
  };
  TestChain split(model_, options_, even_ranges(layers_, 2));
  ASSERT_TRUE(complete(split).ok());
  const auto wanted = run_all(split, requests, 1);
  // Until the chain has this state: the one before holds until the first range has seen the loss and the new hello.
  const auto restart = [&](const std::function<void(RangeSlot&)>& change, StatusCode state) {
    split.ranges.kill(1);
    split.ranges.start(1, change);
    Status status = complete(split);
    while (status.code() != state) status = complete(split);
    return status;
  };
  EXPECT_EQ(restart(learns, StatusCode::kResourceExhausted).message(),
            fmt::format("range 1: {} pages do not fit", options_.page_count));
  made = 0;
  fits = true;
  (void)restart([&](RangeSlot& slot) { learns(slot), slot.facts.model_hash = 1; }, StatusCode::kConflict);
  EXPECT_EQ(made, 0);
  (void)restart(learns, StatusCode::kOk);
  EXPECT_GT(made, 0);
  EXPECT_EQ(run_all(split, requests, 2), wanted);
}

TEST_F(ChainRunnerTest, RangesThatLeaveAGapOrMissTheEndAreRefused) {
  TestChain gap(model_, options_, {{0, 1}, {2, layers_}});
  Status status = complete(gap);
  EXPECT_NE(status.message().find("the ranges before hold layers up to 1; wanted 2"), std::string::npos)
      << status.message();
  TestChain short_of_one(model_, options_, {{0, 1}, {1, layers_ - 1}});
  status = complete(short_of_one);
  EXPECT_NE(
      status.message().find(fmt::format("2 ranges hold layers [0, {}); wanted 2 with all {}", layers_ - 1, layers_)),
      std::string::npos)
      << status.message();
}

TEST_F(ChainRunnerTest, ALostRangeFailsWhatIsInFlightAndComesBack) {
  const auto requests = make_requests(6, model_->config().vocab_size, 7);
  std::atomic<bool> hold{false};
  auto split = chain(2, [&](uint32_t from, const wire::Message& message) {
    return hold && from == 0 && std::holds_alternative<wire::LayerStep>(message) ? 0 : 1;
  });
  ASSERT_TRUE(complete(*split).ok());
  const auto wanted = run_all(*split, requests, 1);

  for (int round = 1; round <= 3; ++round) {
    hold = true;
    ASSERT_TRUE(split->submit(one(step_of(requests[0], 0, 1000))).ok());
    ASSERT_TRUE(split->submit(one(step_of(requests[1], 1, 1000))).ok());
    split->ranges.kill(1);
    for (int i = 0; i < 2; ++i) {
      const BatchResult result = result_of(*split);
      EXPECT_EQ(result.status.code(), StatusCode::kUnavailable) << result.status.to_string();
      EXPECT_NE(result.status.message().find("range 1 (killed)"), std::string::npos) << result.status.message();
      EXPECT_TRUE(result.tokens.empty());
      EXPECT_GE(split->kv_epoch(), static_cast<uint64_t>(round));
    }
    // Without the range a batch fails at once.
    ASSERT_TRUE(split->submit(one(step_of(requests[0], 0, 1000))).ok());
    EXPECT_EQ(result_of(*split).status.code(), StatusCode::kUnavailable);
    hold = false;
    split->ranges.start(1);
    ASSERT_TRUE(complete(*split).ok());
    EXPECT_EQ(run_all(*split, requests, 2), wanted);
  }
}

// The sender has not asked for kv_epoch() since the loss: its pages may be of before.
TEST_F(ChainRunnerTest, ABatchOfBeforeTheLossIsNotComputedAfterIt) {
  const auto requests = make_requests(1, model_->config().vocab_size, 7);
  auto split = chain(2);
  ASSERT_TRUE(complete(*split).ok());
  EXPECT_EQ(split->kv_epoch(), 0u);
  split->ranges.kill(1);
  split->ranges.start(1);
  // Completed once before the loss is seen, perhaps: a batch that fails shows that it is.
  ASSERT_TRUE(split->submit(one(step_of(requests[0], 0, 1000))).ok());
  while (result_of(*split).status.ok()) ASSERT_TRUE(split->submit(one(step_of(requests[0], 0, 1000))).ok());
  ASSERT_TRUE(complete(*split).ok());
  ASSERT_TRUE(split->submit(one(step_of(requests[0], 0, 1000))).ok());
  EXPECT_EQ(result_of(*split).status.code(), StatusCode::kUnavailable);
  EXPECT_GE(split->kv_epoch(), 1u);
  ASSERT_TRUE(split->submit(one(step_of(requests[0], 0, 1000))).ok());
  EXPECT_TRUE(result_of(*split).status.ok());
}

TEST_F(ChainRunnerTest, ARangeThatIsGoneForGoodEndsTheWait) {
  auto split = chain(2);
  ASSERT_TRUE(complete(*split).ok());
  split->ranges.kill(1, true);
  Status status;
  while (status.ok()) status = complete(*split);
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("range 1 (killed) is gone"), std::string::npos) << status.message();
}

TEST_F(ChainRunnerTest, ALostRangeIsNamedUntilItIsBack) {
  auto split = chain(2);
  ASSERT_TRUE(complete(*split).ok());
  EXPECT_EQ(split->runner->missing(), "");
  EXPECT_FALSE(split->runner->recovering());
  split->ranges.kill(1);
  wait_for([&] { return split->runner->recovering(); });
  EXPECT_EQ(split->runner->missing(), "a part of the model's layers is missing: range 1 (killed)");
  split->ranges.start(1);
  wait_for([&] { return !split->runner->recovering(); });
  EXPECT_EQ(split->runner->missing(), "");
}

// One LayerAlive and no more: the range is taken for lost, then its process is to end.
TEST_F(ChainRunnerTest, ASilentRangeIsGivenUpAndThenStartedAgain) {
  const auto requests = make_requests(1, model_->config().vocab_size, 7);
  std::atomic<bool> frozen{false};
  auto split = chain(2, [&](uint32_t from, const wire::Message&) { return frozen && from == 1 ? 0 : 1; });
  ASSERT_TRUE(complete(*split).ok());
  split->ranges.send_alive(1);
  frozen = true;
  ASSERT_TRUE(split->submit(one(step_of(requests[0], 0, 1000))).ok());
  const BatchResult result = result_of(*split);
  EXPECT_NE(result.status.message().find("range 1 (silent for 2 s)"), std::string::npos) << result.status.message();
  wait_for([&] { return split->ranges.restarted() == 1; });
}

// A process may stop before its first LayerAlive has arrived: what completed the chain is expected to send too.
TEST_F(ChainRunnerTest, ARangeThatIsSilentFromTheStartIsGivenUp) {
  std::atomic<bool> frozen{false};
  auto split = chain(2, [&](uint32_t from, const wire::Message&) { return frozen && from == 1 ? 0 : 1; });
  ASSERT_TRUE(complete(*split).ok());
  frozen = true;
  split->ranges.set_send_alive();
  split->ranges.send_alive(2);  // none of this chain: only wakes the first one
  wait_for([&] { return split->runner->recovering(); });
  EXPECT_NE(split->runner->missing().find("range 1 (silent for 2 s)"), std::string::npos) << split->runner->missing();
  wait_for([&] { return split->ranges.restarted() == 1; });
}

TEST_F(ChainRunnerTest, MetricsHaveWhatEachRangeComputed) {
  const auto requests = make_requests(12, model_->config().vocab_size, 5);
  auto split = chain(2);
  ASSERT_TRUE(complete(*split).ok());
  run_all(*split, requests, 1);
  std::map<std::string, double> found;
  for (const RunnerMetric& metric : split->runner->metrics()) found[metric.name] = metric.value;
  EXPECT_EQ(found.at("chain_ranges"), 2);
  EXPECT_EQ(found.at("chain_breaks_total"), 0);
  EXPECT_GT(found.at("chain_parts_total"), 10);
  EXPECT_GT(found.at("chain_row_bytes_total"), found.at("chain_parts_total") * 4 * model_->config().hidden_size);
  const double busy = found.at("chain_busy_seconds_total");
  for (const char* range : {"{range=0}", "{range=1}"}) {
    EXPECT_GT(found.at(std::string("range_compute_seconds_total") + range), 0);
    EXPECT_LE(found.at(std::string("range_compute_seconds_total") + range), busy);
    EXPECT_GE(found.at(std::string("range_idle_ratio") + range), 0);
    EXPECT_LT(found.at(std::string("range_idle_ratio") + range), 1);
  }
}

}  // namespace
}  // namespace millrace
