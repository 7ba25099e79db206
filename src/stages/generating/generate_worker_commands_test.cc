// Admin commands of the worker `generate` about pauses and switches of weights, without a loop, over the fake runner:
// what becomes of the requests that it has.
#include <gtest/gtest.h>

#include <thread>

#include "base/log.h"
#include "stages/generating/weight_commands.h"
#include "stages/generating/workers.h"
#include "stages/testing/generate_worker_testing.h"

namespace millrace {
namespace {

using wire::AdminAction;

// A model whose pictures are never encoded: a request with one waits until it is dropped.
class EndlessMedia : public MediaModel {
 public:
  Result<MediaFeatures> encode(const wire::PromptMedia&, FunctionRef<bool()> keep_going) override {
    while (keep_going()) std::this_thread::yield();
    return error(StatusCode::kCancelled, "dropped");
  }
  void set_positions(int32_t, std::span<const wire::PromptMedia>, PromptInput&) const override {}
};

class GenerateWorkerCommandsTest : public testing::GenerateWorkerHarness {
 protected:
  void SetUp() override {
    log_init("test", LogLevel::kOff);
    model_.eos_one_in = 0;
  }

  void make(GenerateParts parts = {}) { make_over_fake(std::move(parts)); }
  void generate(uint64_t id, std::vector<int32_t> prompt, int32_t max_tokens) {
    wire::TokenizedRequest request{.prompt = std::move(prompt), .sampling = {.temperature = 0}};
    request.sampling.max_tokens = max_tokens;
    worker_->generate({id}, std::move(request), emit_);
  }
  // Waits for its picture.
  void generate_with_picture(uint64_t id) {
    wire::PromptMedia picture{.begin = 1, .rows = 2, .grid_t = 1, .grid_h = 1, .grid_w = 2};
    picture.digest.bytes = std::string(wire::kMediaDigestBytes, '.');
    picture.bytes.bytes = "file";
    picture.field = "messages[0]";
    wire::TokenizedRequest request{.prompt = {1, 2, 3, 4}, .sampling = {.max_tokens = 4, .temperature = 0}};
    request.media.push_back(std::move(picture));
    worker_->generate({id}, std::move(request), emit_);
  }
  void expect_aborted(uint64_t id) {
    const auto& emitted = emit_.of[id];
    EXPECT_TRUE(emitted.failures.empty());
    EXPECT_EQ(emitted.results.size(), 1u);
    ASSERT_FALSE(emitted.tokens.empty());
    EXPECT_TRUE(emitted.tokens.front().start);
    ASSERT_TRUE(emitted.tokens.back().finish);
    EXPECT_EQ(emitted.tokens.back().finish->reason, wire::FinishReason::kAborted);
  }
  void admin(wire::AdminRequest command) { worker_->admin(command, 0, emit_); }
  void ticks(int count) {
    for (int i = 0; i < count; ++i) worker_->tick(0, emit_);
  }
  std::vector<uint64_t> versions(uint64_t id) {
    std::vector<uint64_t> out;
    for (const wire::TokenDelta& delta : emit_.of[id].tokens) {
      out.insert(out.end(), delta.tokens.size(), delta.weight_version);
    }
    return out;
  }
};

TEST_F(GenerateWorkerCommandsTest, ADropLeavesWhatAPendingSwitchSwitchesTo) {
  for (const InFlightPolicy policy : {InFlightPolicy::kRetract, InFlightPolicy::kInPlace}) {
    emit_ = {};
    make();
    generate(1, {1, 2, 3}, 20);
    ticks(5);
    runner_->staged = 2;
    admin({.id = 7, .action = AdminAction::kSwitchWeights, .weight_version = 2, .policy = policy});
    admin({.id = 8, .action = AdminAction::kDropWeights, .weight_version = 2});
    run();
    EXPECT_EQ(runner_->weight_version, 2u);
    ASSERT_EQ(emit_.replies.size(), 2u);
    EXPECT_EQ(emit_.replies[0].first, 8u);
    EXPECT_NE(emit_.replies[0].second.value().find("switch to version 2 is under way"), std::string::npos);
    EXPECT_EQ(emit_.replies[1].first, 7u);
    EXPECT_TRUE(emit_.replies[1].second.ok());
    EXPECT_TRUE(emit_.of[1].failures.empty());
    ASSERT_EQ(versions(1).size(), 20u);
    EXPECT_EQ(versions(1).back(), 2u);
    EXPECT_TRUE(runner_->violations().empty());
    // Where no switch is pending, it is dropped.
    runner_->staged = 3;
    admin({.id = 9, .action = AdminAction::kDropWeights, .weight_version = 3});
    EXPECT_EQ(runner_->staged, 0u);
  }
}

TEST_F(GenerateWorkerCommandsTest, ASwitchThatDidNotHappenIsReportedSo) {
  make();
  generate(1, {1, 2, 3}, 20);
  ticks(5);
  runner_->staged = 2;
  admin({.id = 7, .action = AdminAction::kSwitchWeights, .weight_version = 2, .policy = InFlightPolicy::kRetract});
  runner_->staged = 0;  // a fault of the runner
  run();
  ASSERT_EQ(emit_.replies.size(), 1u);
  EXPECT_EQ(emit_.replies[0].second.status().code(), StatusCode::kConflict);
  EXPECT_EQ(versions(1), std::vector<uint64_t>(20, 1));
}

// The next lease may be of a server that knows of no pause.
TEST_F(GenerateWorkerCommandsTest, APauseEndsWithTheLease) {
  make();
  generate(1, {1, 2, 3}, 40);
  ticks(5);
  admin({.id = 7, .action = AdminAction::kPause, .policy = InFlightPolicy::kInPlace});
  worker_->drop({1});
  worker_->on_lease_lost();
  generate(2, {4, 5, 6}, 20);
  run();
  EXPECT_EQ(versions(2), std::vector<uint64_t>(20, 1));
  admin({.id = 8, .action = AdminAction::kContinue});  // of the next server, which was asked to
  generate(3, {4, 5, 6}, 20);
  run();
  EXPECT_EQ(versions(3).size(), 20u);
}

TEST_F(GenerateWorkerCommandsTest, APausedEngineWithRequestsRests) {
  make();
  generate(1, {1, 2, 3}, 40);
  ticks(5);
  admin({.id = 7, .action = AdminAction::kPause, .policy = InFlightPolicy::kInPlace});
  int rest_ms = 0;
  for (int i = 0; i < 100 && rest_ms == 0; ++i) rest_ms = worker_->tick(0, emit_);
  EXPECT_EQ(rest_ms, kPausedTickMs);
  generate(2, {4, 5, 6}, 40);
  EXPECT_EQ(worker_->tick(0, emit_), 0) << "others may have come with it";
  EXPECT_EQ(worker_->tick(0, emit_), kPausedTickMs);
  admin({.id = 8, .action = AdminAction::kContinue});
  run();
  EXPECT_EQ(versions(1).size(), 40u);
  EXPECT_EQ(versions(2).size(), 40u);
}

TEST_F(GenerateWorkerCommandsTest, ThePolicyAbortEndsRequestsThatAreStillPrepared) {
  GenerateParts parts;
  parts.make_media = [](const LoadProgress&) -> Result<std::unique_ptr<MediaModel>> {
    return std::unique_ptr<MediaModel>(std::make_unique<EndlessMedia>());
  };
  make(std::move(parts));
  generate_with_picture(1);
  generate(2, {1, 2, 3}, 40);
  ticks(5);
  admin({.id = 7, .action = AdminAction::kPause, .policy = InFlightPolicy::kAbort});
  expect_aborted(1);
  expect_aborted(2);
  admin({.id = 8, .action = AdminAction::kContinue});
  generate_with_picture(3);
  runner_->staged = 2;
  wire::AdminRequest update{
      .id = 9, .action = AdminAction::kSwitchWeights, .weight_version = 5, .policy = InFlightPolicy::kAbort};
  admin(update);
  EXPECT_TRUE(emit_.of[3].results.empty()) << "no such version is staged";
  update.weight_version = 2;
  admin(update);
  expect_aborted(3);
  run();
  EXPECT_EQ(runner_->weight_version, 2u);
}

}  // namespace
}  // namespace millrace
