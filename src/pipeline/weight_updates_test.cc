// Updates against replicas that a test plays: what is asked of them, and what becomes of each reply.
#include "pipeline/weight_updates.h"

#include <gtest/gtest.h>

#include <deque>

#include "base/log.h"

namespace millrace {
namespace {

using Replies = std::vector<wire::AdminReply>;
using wire::AdminAction;

wire::AdminReply reply(const char* stage, StatusCode code = StatusCode::kOk, const char* message = "") {
  return {.stage = stage, .code = code, .message = message};
}

class WeightUpdatesTest : public ::testing::Test {
 protected:
  WeightUpdatesTest() { log_init("test", LogLevel::kOff); }

  struct Asked {
    PipelineCommand command;
    AdminCommands::Done done;
  };

  void update(const std::string& path, const std::string& label = "") {
    const Status begun = updates_.update_from_disk({.path = path, .label = label},
                                                   [this](const Status& status) { ends_.push_back(status); });
    if (!begun.ok()) ends_.push_back(begun);
  }
  // The oldest open command, which must be of this kind, gets its replies.
  PipelineCommand answer(AdminAction action, Replies replies = {reply("generate-0"), reply("generate-1")}) {
    if (asked_.empty()) {
      ADD_FAILURE() << "nothing is asked";
      return {};
    }
    Asked asked = std::move(asked_.front());
    asked_.pop_front();
    EXPECT_EQ(asked.command.action, action);
    asked.done(std::move(replies));
    return asked.command;
  }

  std::deque<Asked> asked_;
  std::vector<uint64_t> required_;
  std::vector<Status> ends_;
  WeightUpdates updates_{{"generate"},
                         [this](PipelineCommand command, AdminCommands::Done done) {
                           asked_.push_back({std::move(command), std::move(done)});
                         },
                         [this](uint64_t version) { required_.push_back(version); }};
};

TEST_F(WeightUpdatesTest, StagesOnAllThenSwitchesAll) {
  update("/w/1", "one");
  EXPECT_EQ(updates_.state().phase, WeightsState::Phase::kStaging);
  const PipelineCommand stage = answer(AdminAction::kStageWeights);
  EXPECT_EQ(stage.argument, "/w/1");
  EXPECT_EQ(stage.weight_version, 2u);
  EXPECT_EQ(stage.stages, std::vector<std::string>{"generate"});
  EXPECT_EQ(updates_.state().phase, WeightsState::Phase::kSwitching);
  EXPECT_TRUE(required_.empty() && ends_.empty());
  EXPECT_EQ(answer(AdminAction::kSwitchWeights).weight_version, 2u);
  ASSERT_EQ(ends_.size(), 1u);
  EXPECT_TRUE(ends_[0].ok());
  EXPECT_EQ(required_, std::vector<uint64_t>{2});
  const WeightsState state = updates_.state();
  EXPECT_EQ(state.phase, WeightsState::Phase::kIdle);
  EXPECT_EQ(state.label, "one");
  EXPECT_EQ(updates_.label(1), "1");
  EXPECT_TRUE(asked_.empty());
}

TEST_F(WeightUpdatesTest, OneThatCannotStageKeepsTheOldWeightsOnAll) {
  update("/w/1");
  answer(AdminAction::kStageWeights, {reply("generate-0"), reply("generate-1", StatusCode::kNotFound, "no folder")});
  EXPECT_TRUE(ends_.empty());  // what the other one has staged is dropped first
  answer(AdminAction::kDropWeights);
  ASSERT_EQ(ends_.size(), 1u);
  EXPECT_EQ(ends_[0].code(), StatusCode::kNotFound);
  EXPECT_EQ(ends_[0].message(), "generate-1: no folder");
  EXPECT_TRUE(required_.empty());
  EXPECT_EQ(updates_.state().version, 1u);
  EXPECT_EQ(updates_.state().last_error, "generate-1: no folder");
  update("/w/2");  // the next one has another number: a version is never two sets of weights
  EXPECT_EQ(answer(AdminAction::kStageWeights).weight_version, 3u);
}

TEST_F(WeightUpdatesTest, OneUpdateAtATime) {
  update("/w/1");
  update("/w/2");
  ASSERT_EQ(ends_.size(), 1u);
  EXPECT_EQ(ends_[0].code(), StatusCode::kConflict);
  EXPECT_EQ(asked_.size(), 1u);
}

TEST_F(WeightUpdatesTest, AnUnavailableReplicaHoldsUpNoUpdateAndGetsTheWeightsWhenItJoins) {
  update("/w/1");
  const Replies one_missing = {reply("generate-0"), reply("generate-1", StatusCode::kUnavailable, "starting")};
  answer(AdminAction::kStageWeights, one_missing);
  answer(AdminAction::kSwitchWeights, one_missing);
  ASSERT_TRUE(ends_.size() == 1 && ends_[0].ok());
  EXPECT_TRUE(asked_.empty());
  updates_.on_joined("detokenize", 0);
  EXPECT_TRUE(asked_.empty());
  updates_.on_joined("generate", 1);
  const PipelineCommand stage = answer(AdminAction::kStageWeights, {reply("generate-1")});
  EXPECT_EQ(stage.argument, "/w/1");
  EXPECT_EQ(stage.weight_version, 2u);
  EXPECT_EQ(stage.replica, std::optional<uint32_t>(1));
  EXPECT_EQ(answer(AdminAction::kSwitchWeights, {reply("generate-1")}).replica, std::optional<uint32_t>(1));
}

TEST_F(WeightUpdatesTest, OneThatDoesNotSwitchIsLeftOutAndCatchesUp) {
  update("/w/1");
  answer(AdminAction::kStageWeights);
  answer(AdminAction::kSwitchWeights, {reply("generate-0"), reply("generate-1", StatusCode::kDeadline, "silent")});
  ASSERT_TRUE(ends_.size() == 1 && ends_[0].ok());
  EXPECT_EQ(required_, std::vector<uint64_t>{2});
  answer(AdminAction::kStageWeights,
         {reply("generate-0", StatusCode::kInvalidArgument, "serves"), reply("generate-1")});
  answer(AdminAction::kSwitchWeights, {reply("generate-0", StatusCode::kConflict), reply("generate-1")});
  EXPECT_TRUE(asked_.empty());
}

TEST_F(WeightUpdatesTest, WhereNoneSwitchesTheOldVersionStays) {
  update("/w/1");
  answer(AdminAction::kStageWeights);
  answer(AdminAction::kSwitchWeights, {reply("generate-0", StatusCode::kUnavailable, "died")});
  answer(AdminAction::kDropWeights, {});
  ASSERT_EQ(ends_.size(), 1u);
  EXPECT_FALSE(ends_[0].ok());
  EXPECT_EQ(required_, std::vector<uint64_t>{1});  // one that switched without a reply is not placed
  EXPECT_EQ(updates_.state().version, 1u);
}

TEST_F(WeightUpdatesTest, OneThatJoinsInAPauseIsPausedFirst) {
  Status paused = internal_error("not yet");
  updates_.pause(wire::InFlightPolicy::kRetract, [&](const Status& status) { paused = status; });
  answer(AdminAction::kPause);
  EXPECT_TRUE(paused.ok() && updates_.state().paused);
  updates_.on_joined("generate", 0);
  EXPECT_EQ(answer(AdminAction::kPause, {reply("generate-0")}).policy, wire::InFlightPolicy::kRetract);
  updates_.resume([](const Status&) {});
  answer(AdminAction::kContinue);
  EXPECT_FALSE(updates_.state().paused);
  updates_.on_joined("generate", 0);
  EXPECT_TRUE(asked_.empty());
}

TEST_F(WeightUpdatesTest, LabelsAreBoundedAndKept) {
  EXPECT_EQ(updates_.set_label(std::string(kMaxVersionLabelBytes + 1, 'x')).code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(updates_.set_label("base").ok());
  EXPECT_EQ(updates_.label(1), "base");
  update("/w/1");
  answer(AdminAction::kStageWeights);
  answer(AdminAction::kSwitchWeights);
  EXPECT_EQ(updates_.label(1), "base");
  EXPECT_EQ(updates_.label(2), "2");
}

}  // namespace
}  // namespace millrace
