// Layers of a chunk that are sent while the others are computed.
#include <gtest/gtest.h>

#include "stages/transfer/testing/transfers_fixture.h"

namespace millrace {
namespace {

using testing::prompt;
using testing::TransferNet;
using namespace transfer;  // NOLINT

using Layers = testing::TransfersTest;

// P's steps take several turns, in which the layers are stored one after the other.
TEST_F(Layers, LayersAreSentWhileTheOthersAreComputed) {
  TransferNet net;
  net.p.runner.polls_per_step = 8;
  std::vector<std::string> last_chunk;
  net.on_deliver = [&](const wire::Message& message) {
    const auto* part = std::get_if<wire::KvPart>(&message);
    if (part == nullptr || part->first_page < 28) return;
    last_chunk.push_back(fmt::format("{}+{} of {}", part->first_layer, part->layers,
                                     net.p.scheduler.transfers().cached_pages({{"", 1}, prompt(496)})));
  };
  EXPECT_TRUE(*net.send(1, prompt(500)));
  net.run();
  EXPECT_EQ(net.transferred.at(1), 496);
  EXPECT_EQ(net.d.outcomes.at(1).usage.cached_tokens, 496);
  EXPECT_GT(net.parts_of_layers, 7u * 4) << "of each chunk";
  EXPECT_EQ(last_chunk, (std::vector<std::string>{"0+1 of 28", "1+1 of 28", "2+1 of 28", "3+1 of 31"}))
      << "the last layer when the step has ended";
  net.expect_clean_end();
}

// The runner's thread may end a step between P's look at what it has stored and P's reading of that.
TEST_F(Layers, AStepThatEndsBeforeItsLayersAreReadCostsNothing) {
  TransferNet net;
  net.p.runner.polls_per_step = 8;
  net.p.runner.looks_per_poll = 1;
  EXPECT_TRUE(*net.send(1, prompt(500)));
  net.run();
  EXPECT_EQ(net.transferred.at(1), 496);
  EXPECT_EQ(net.d.outcomes.at(1).usage.cached_tokens, 496);
  net.expect_clean_end();
}

// What has come of a step that then fails is of no use, and its transfer ends; D computes.
TEST_F(Layers, AStepThatFailsAfterLayersWereSentEndsTheTransfer) {
  for (const bool row : {false, true}) {
    TransferNet net;
    net.p.runner.polls_per_step = 8;
    const auto fault = [&] { return net.parts_of_layers > 12 ? internal_error("a fault") : ok_status(); };
    if (row) {
      // A request that answers beside the job: its row alone fails.
      net.p.receive(testing::Harness::request(900, prompt(20, 700), 200));
      net.p.runner.fail_row = [&](const SequenceStep&) { return fault(); };
    } else {
      net.p.runner.fail_step = [&](const Batch&) { return fault(); };
    }
    EXPECT_TRUE(*net.send(1, prompt(500)));
    net.run();
    EXPECT_GT(net.parts_of_layers, 12u);
    EXPECT_LT(net.transferred.at(1), 496);
    EXPECT_GT(net.transferred.at(1), 0) << "the chunks before";
    EXPECT_EQ(decode_ended(net, "unavailable"), 1);
    EXPECT_EQ(net.d.scheduler.memory_for_test().books().importing(), 0);
    net.p.runner.fail_step = nullptr;
    net.p.runner.fail_row = nullptr;
    net.expect_clean_end();
  }
}

// Pages that wait for their last layers at D are not kept from a request that needs the memory.
TEST_F(Layers, PagesThatWaitForLayersGiveWayToARequest) {
  TransferNet net(true, 256, 40);
  net.p.runner.polls_per_step = 8;
  EXPECT_TRUE(*net.send(1, prompt(500)));
  for (int i = 0; i < 1000 && net.d.scheduler.memory_for_test().books().importing() == 0; ++i) net.turn();
  ASSERT_GT(net.d.scheduler.memory_for_test().books().importing(), 0);
  net.p_frozen = true;
  for (int i = 0; i < 50; ++i) net.turn();  // what was on its way is written
  ASSERT_GT(net.d.scheduler.memory_for_test().books().importing(), 0);
  const wire::TokenizedRequest large = testing::Harness::request(2, prompt(580, 300), 10);
  net.sent[2] = large;
  net.d.receive(large);
  for (int i = 0; i < 200 && !net.d.outcomes[2].finish; ++i) net.turn();
  ASSERT_TRUE(net.d.outcomes[2].finish) << "it does not wait for the transfer's time";
  EXPECT_EQ(net.d.outcomes[2].finish->reason, wire::FinishReason::kLength);
  net.p_frozen = false;
  net.run();
  net.expect_clean_end();
}

}  // namespace
}  // namespace millrace
