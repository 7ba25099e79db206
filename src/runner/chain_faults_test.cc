// What becomes of a chain's requests when messages are wrong, lost, repeated, late or another chain's, and when ranges
// are restarted again and again.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <thread>

#include "runner/testing/chain_fixture.h"

namespace millrace {
namespace {

class ChainFaults : public ChainFixture {};

// The test changes a step on its way. `seal`: and its checksum, as if the sender had meant it.
struct Tamper {
  std::function<void(wire::LayerStep&)> change;
  bool seal = true;
  std::string error;
};

TEST_F(ChainFaults, AStepThatIsWrongIsRefusedBeforeAnythingIsComputed) {
  const std::vector<Tamper> cases = {
      {[](wire::LayerStep& s) { s.rows.bytes.bytes[0] ^= 1; }, false, "the checksum of the rows is"},
      {[](wire::LayerStep& s) { s.step += 1; }, true, "came back; wanted step"},
      {[](wire::LayerStep& s) { s.batch[0].pages[0] = 96; }, true, "request 1: the page 96; wanted [0, 96)"},
      {[](wire::LayerStep& s) { s.batch[0].pages.clear(); }, true, "request 1: 0 pages for"},
      {[](wire::LayerStep& s) { s.batch[0].pages_kept = 2; }, true,
       "2 pages are kept of the table of request 1, which has 0"},
      {[](wire::LayerStep& s) { s.batch[0].pages[0] = 3; }, false, "the checksum of the rows is"},
      {[](wire::LayerStep& s) { s.number += 1; }, true, "step number 1 came; wanted 0"},
      {[](wire::LayerStep& s) { s.batch[0].token_index = 1000; }, true, "pages for 10"},
      {[](wire::LayerStep& s) { s.weight_version = 5; }, true, "weight_version is 5; wanted 1"},
      {[](wire::LayerStep& s) {
         s.copies = {2, 0, 0};
       },
       true, "a copy has the direction 2"},
      {[](wire::LayerStep& s) {
         s.copies = {0, 0, 0};
       },
       true, "host"},
  };
  for (const Tamper& tamper : cases) {
    std::atomic<bool> armed{true};
    auto split = chain(2, [&](uint32_t from, wire::Message& message) {
      auto* step = std::get_if<wire::LayerStep>(&message);
      if (from != 0 || step == nullptr || !armed.exchange(false)) return 1;
      tamper.change(*step);
      if (tamper.seal) step->rows.checksum = layer_checksum(*step);
      return 1;
    });
    ASSERT_TRUE(complete(*split).ok());
    const auto requests = make_requests(1, model_->config().vocab_size, 8);
    ASSERT_TRUE(split->submit(one(step_of(requests[0], 0, 1000))).ok());
    const BatchResult result = result_of(*split);
    EXPECT_FALSE(result.status.ok()) << tamper.error;
    EXPECT_NE(result.status.message().find(tamper.error), std::string::npos) << result.status.message();
    // The next one is computed, whether in this epoch or, where a step went missing, in another.
    Status again = error(StatusCode::kUnavailable, "");
    while (again.code() == StatusCode::kUnavailable) {
      ASSERT_TRUE(complete(*split).ok());
      (void)split->kv_epoch();
      ASSERT_TRUE(split->submit(one(step_of(requests[0], 0, 1000))).ok());
      again = result_of(*split).status;
    }
    EXPECT_TRUE(again.ok()) << again.to_string();
  }
}

TEST_F(ChainFaults, ARowThatIsNotANumberCostsItsSequenceAlone) {
  const auto requests = make_requests(2, model_->config().vocab_size, 9);
  auto split = chain(2, [&](uint32_t from, wire::Message& message) {
    auto* step = std::get_if<wire::LayerStep>(&message);
    if (from != 0 || step == nullptr) return 1;
    const auto row =
        static_cast<std::size_t>(step->batch[0].rows - 1) * static_cast<std::size_t>(step->rows.hidden_size);
    const float nan = std::numeric_limits<float>::quiet_NaN();
    std::memcpy(step->rows.bytes.bytes.data() + row * sizeof(float), &nan, sizeof(nan));
    step->rows.checksum = layer_checksum(*step);
    return 1;
  });
  ASSERT_TRUE(complete(*split).ok());
  Batch batch{.step = step_++, .sequences = {step_of(requests[0], 0, 1000), step_of(requests[1], 1, 1000)}};
  ASSERT_TRUE(split->submit(std::move(batch)).ok());
  const BatchResult result = result_of(*split);
  ASSERT_TRUE(result.status.ok()) << result.status.to_string();
  ASSERT_EQ(result.tokens.size(), 2u);
  EXPECT_FALSE(result.tokens[0].status.ok());
  EXPECT_TRUE(result.tokens[1].status.ok()) << result.tokens[1].status.to_string();
}

TEST_F(ChainFaults, MessagesThatComeTwiceChangeNothing) {
  const auto requests = make_requests(6, model_->config().vocab_size, 10);
  const auto wanted = one_after_the_other(*ModelRunner::make(model_, options_).value(), requests);
  for (int ranges = 2; ranges <= layers_; ++ranges) {
    auto split = chain(ranges, [](uint32_t, const wire::Message&) { return 2; });
    ASSERT_TRUE(complete(*split).ok());
    EXPECT_EQ(run_all(*split, requests, 1), wanted);
    EXPECT_EQ(split->kv_epoch(), 0u);
  }
}

TEST_F(ChainFaults, AStepThatIsLostBeginsAnEpoch) {
  const auto requests = make_requests(6, model_->config().vocab_size, 10);
  std::atomic<bool> drop{false};
  auto split = chain(2, [&](uint32_t from, const wire::Message& message) {
    return from == 0 && std::holds_alternative<wire::LayerStep>(message) && drop.exchange(false) ? 0 : 1;
  });
  ASSERT_TRUE(complete(*split).ok());
  const auto wanted = run_all(*split, requests, 1);
  drop = true;
  ASSERT_TRUE(split->submit(one(step_of(requests[0], 0, 1000))).ok());
  ASSERT_TRUE(split->submit(one(step_of(requests[1], 1, 1000))).ok());
  for (int i = 0; i < 2; ++i) {
    const BatchResult result = result_of(*split);
    EXPECT_EQ(result.status.code(), StatusCode::kUnavailable);
    EXPECT_NE(result.status.message().find("step number"), std::string::npos) << result.status.message();
  }
  EXPECT_GE(split->kv_epoch(), 1u);
  ASSERT_TRUE(complete(*split).ok());
  EXPECT_EQ(run_all(*split, requests, 3), wanted);
}

// No later step shows the gap: the only sequence waits for this one.
TEST_F(ChainFaults, ALostMessageWithNothingBehindItIsMissed) {
  const auto requests = make_requests(6, model_->config().vocab_size, 10);
  for (const uint32_t loser : {0u, 1u, 2u}) {
    std::atomic<bool> drop{false};
    auto split = chain(3, [&](uint32_t from, const wire::Message& message) {
      const bool rows = !std::holds_alternative<wire::LayerHello>(message);
      return from == loser && rows && drop.exchange(false) ? 0 : 1;
    });
    ASSERT_TRUE(complete(*split).ok());
    const auto wanted = run_all(*split, requests, 1);
    drop = true;
    ASSERT_TRUE(split->submit(one(step_of(requests[0], 0, 1000))).ok());
    const BatchResult result = result_of(*split);
    EXPECT_EQ(result.status.code(), StatusCode::kUnavailable);
    const std::string part = loser == 2 ? "came back; wanted step" : "step number";
    EXPECT_NE(result.status.message().find(part), std::string::npos) << result.status.message();
    EXPECT_EQ(split->kv_epoch(), 1u);
    ASSERT_TRUE(complete(*split).ok());
    EXPECT_EQ(run_all(*split, requests, 3), wanted);
  }
}

TEST_F(ChainFaults, ARangeThatComputesForLongLosesNothing) {
  const auto requests = make_requests(6, model_->config().vocab_size, 10);
  std::atomic<std::size_t> probes{0};
  std::atomic<bool> slow{false};
  auto split = chain(2, [&](uint32_t from, const wire::Message& message) {
    const auto* step = std::get_if<wire::LayerStep>(&message);
    if (step != nullptr && step->batch.empty()) ++probes;
    if (from == 1 && std::holds_alternative<wire::LayerResult>(message) && slow.exchange(false)) {
      wait_for([&] { return probes == kMaxProbes; });
    }
    return 1;
  });
  ASSERT_TRUE(complete(*split).ok());
  const auto wanted = run_all(*split, requests, 1);
  slow = true;
  EXPECT_EQ(run_all(*split, requests, 2), wanted);
  EXPECT_GE(probes, kMaxProbes);
  EXPECT_EQ(split->kv_epoch(), 0u);
}

// Each time with something in flight. The other ranges keep what they have, of an epoch that is over.
TEST_F(ChainFaults, TheLastRangeIsRestartedAHundredTimes) {
  const auto requests = make_requests(3, model_->config().vocab_size, 11);
  auto split = chain(3);
  ASSERT_TRUE(complete(*split).ok());
  const auto wanted = run_all(*split, requests, 1);
  for (uint32_t round = 1; round <= 100; ++round) {
    ASSERT_TRUE(split->submit(one(step_of(requests[0], 0, 1000))).ok());
    split->ranges.kill(2);
    ASSERT_TRUE(split->submit(one(step_of(requests[1], 1, 1000))).ok());
    const Status before = result_of(*split).status;  // of the loss, or just in time
    EXPECT_TRUE(before.ok() || before.code() == StatusCode::kUnavailable) << before.to_string();
    EXPECT_EQ(result_of(*split).status.code(), StatusCode::kUnavailable);
    split->ranges.start(2);
    ASSERT_TRUE(complete(*split).ok());
    ASSERT_EQ(run_all(*split, requests, round), wanted) << "round " << round;
  }
}

TEST_F(ChainFaults, ARangeThatDiesAtAnyMomentChangesNoToken) {
  const auto requests = make_requests(6, model_->config().vocab_size, 13);
  const auto wanted = one_after_the_other(*ModelRunner::make(model_, options_).value(), requests);
  int losses = 0;
  for (const uint32_t victim : {1u, 2u}) {
    for (int moment = 0; moment < 20; ++moment) {
      std::atomic<int> steps{0};
      std::atomic<bool> ended{false};
      auto split = chain(3, [&](uint32_t from, const wire::Message& message) {
        if (from == 0 && std::holds_alternative<wire::LayerStep>(message)) ++steps;
        return 1;
      });
      ASSERT_TRUE(complete(*split).ok());
      std::thread killer([&] {
        wait_for([&] { return steps > moment || ended; });
        split->ranges.kill(victim);
        split->ranges.start(victim);
      });
      const auto recover = [&] {
        ++losses;
        EXPECT_TRUE(complete(*split).ok());
      };
      EXPECT_EQ(run_all(*split, requests, static_cast<uint32_t>(moment + 1), recover), wanted)
          << "range " << victim << ", moment " << moment;
      ended = true;
      killer.join();
    }
  }
  EXPECT_GT(losses, 0);
}

// One that was frozen, perhaps, and replaced: its hello must not leave the chain with ranges that take
// every step for a late one, nor may its steps be computed.
TEST_F(ChainFaults, AnotherFirstRangeCostsAnEpochAndNoMore) {
  const auto requests = make_requests(6, model_->config().vocab_size, 12);
  std::atomic<uint64_t> epoch{0};
  wire::ChainFacts facts;
  auto split = chain(3, [&](uint32_t from, const wire::Message& message) {
    const auto* hello = std::get_if<wire::LayerHello>(&message);
    if (from == 0 && hello != nullptr && epoch.exchange(hello->chain_epoch) == 0) facts = hello->facts;
    return 1;
  });
  ASSERT_TRUE(complete(*split).ok());
  const auto wanted = run_all(*split, requests, 1);
  for (int round = 1; round <= 3; ++round) {
    const uint64_t other = epoch + 1'000'000;
    split->ranges.send(1, wire::LayerHello{.chain_epoch = other,
                                           .ranges = 3,
                                           .layers_end = even_ranges(layers_, 3)[0].end,
                                           .facts = facts,
                                           .failure = {}});
    split->ranges.send(1, wire::LayerStep{.chain_epoch = other + 1, .stage_to = 1});
    wait_for([&] { return split->kv_epoch() == static_cast<uint64_t>(round); });
    ASSERT_TRUE(complete(*split).ok());
    EXPECT_EQ(run_all(*split, requests, 2), wanted);
    EXPECT_EQ(split->kv_epoch(), static_cast<uint64_t>(round));
  }
  EXPECT_EQ(split->ranges.counters(1).refused, 0u);
}

// A range that was started again from files with other bytes: what the first ones began must not go on with it.
TEST_F(ChainFaults, ARangeWithOtherWeightsIsRefusedUntilTheFirstOnesAreBack) {
  const auto requests = make_requests(6, model_->config().vocab_size, 13);
  WeightTable changed = model_->weights();
  WeightTable::Entry norm = *changed.find("model.norm.weight");
  norm.checksum = 1;
  changed.put("model.norm.weight", norm);
  const auto other = model_of_table(model_->config(), std::make_shared<WeightTable>(std::move(changed)),
                                    model_->layers(), model_->weight_version())
                         .value();
  auto split = chain(3);
  ASSERT_TRUE(complete(*split).ok());
  const auto wanted = run_all(*split, requests, 1);
  const uint64_t checksum = split->facts().weights_checksum;
  EXPECT_NE(checksum, 0u);
  split->ranges.kill(2);
  split->ranges.start(2, {}, other);
  wait_for([&] { return split->missing().find("have the checksum") != std::string::npos; });
  EXPECT_NE(split->missing().find(fmt::format("; wanted {:016x}", checksum)), std::string::npos) << split->missing();
  ASSERT_TRUE(split->submit(one(step_of(requests[0], 0, 1000))).ok());
  const BatchResult result = result_of(*split);
  EXPECT_EQ(result.status.code(), StatusCode::kUnavailable);
  EXPECT_NE(result.status.message().find("have the checksum"), std::string::npos) << result.status.message();
  split->ranges.kill(2);
  split->ranges.start(2);
  wait_for([&] { return split->missing().empty(); });
  EXPECT_EQ(run_all(*split, requests, 2), wanted);
  EXPECT_EQ(split->facts().weights_checksum, checksum);
}

}  // namespace
}  // namespace millrace
