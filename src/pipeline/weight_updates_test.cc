// Updates against replicas that a test plays: what is asked of them, and what becomes of each reply.
#include "pipeline/weight_updates.h"

#include <gtest/gtest.h>

#include <deque>

#include "base/log.h"

namespace millrace {
namespace {

using Replies = std::vector<wire::AdminReply>;
using wire::AdminAction;

constexpr uint64_t kSum = 77;  // of the weights that all have

wire::AdminReply reply(const char* stage, StatusCode code = StatusCode::kOk, const char* message = "") {
  return {.stage = stage, .code = code, .message = message, .weights = {.checksum = kSum}};
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

  // generate-1 is stale at this time.
  void tick_stale(int64_t now_ms, uint64_t wanted = 2, uint64_t checksum = kSum) {
    updates_.tick(now_ms, {{"generate", 1, {wanted, checksum}}});
  }
  // An update that generate-1 missed.
  void update_without_one() {
    const Replies one_missing = {reply("generate-0"), reply("generate-1", StatusCode::kUnavailable, "killed")};
    update("/w/1");
    answer(AdminAction::kStageWeights, one_missing);
    answer(AdminAction::kSwitchWeights, one_missing);
    ASSERT_TRUE(ends_.size() == 1 && ends_[0].ok());
    ends_.clear();
  }

  std::deque<Asked> asked_;
  std::vector<uint64_t> required_, accepted_;
  std::vector<Status> ends_;
  std::map<uint32_t, std::string> notes_;
  WeightUpdates updates_{
      {"generate"},
      {.command =
           [this](PipelineCommand command, AdminCommands::Done done) {
             asked_.push_back({std::move(command), std::move(done)});
           },
       .require =
           [this](RequiredWeights weights) {
             EXPECT_EQ(weights.checksum, kSum);
             required_.push_back(weights.version);
           },
       .accept = [this](RequiredWeights next) { accepted_.push_back(next.version); },
       .note = [this](const StageReplica& replica, std::string text) { notes_[replica.replica] = std::move(text); },
       .hold = [](bool) {},
       .in_flight = [] { return std::size_t{0}; }}};
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
  EXPECT_EQ(accepted_, std::vector<uint64_t>{2});  // while they switch, both serve
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

TEST_F(WeightUpdatesTest, ASnapshotFromBeforeTheStartServes) {
  updates_.start_from({.version = 7, .label = "step-7", .checksum = kSum, .path = "/s/7"});
  EXPECT_EQ(required_, std::vector<uint64_t>{7});
  const WeightsState state = updates_.state();
  EXPECT_TRUE(state.version == 7 && state.label == "step-7");
  EXPECT_TRUE(state.snapshot.version == 7 && state.snapshot.path == "/s/7");
  // A replica that began with other weights, as one of another host does, loads it.
  tick_stale(1000, 7);
  const PipelineCommand stage = answer(AdminAction::kStageWeights, {reply("generate-1")});
  EXPECT_TRUE(stage.argument == "/s/7" && stage.weight_version == 7 && stage.weights_checksum == kSum);
  EXPECT_EQ(answer(AdminAction::kSwitchWeights, {reply("generate-1")}).weight_version, 7u);
  update("/w/8");
  EXPECT_EQ(answer(AdminAction::kStageWeights).weight_version, 8u);
  answer(AdminAction::kSwitchWeights);
  EXPECT_EQ(updates_.state().label, "8");
  EXPECT_EQ(updates_.label(7), "step-7");
}

TEST_F(WeightUpdatesTest, OneThatCannotStageKeepsTheOldWeightsOnAll) {
  update("/w/1");
  answer(AdminAction::kStageWeights, {reply("generate-0"), reply("generate-1", StatusCode::kNotFound, "no folder")});
  EXPECT_TRUE(ends_.empty());                                       // what the other one has staged is dropped first
  EXPECT_EQ(answer(AdminAction::kDropWeights).weight_version, 2u);  // and nothing else that is loaded
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

TEST_F(WeightUpdatesTest, ReplicasThatLoadedOtherBytesDoNotSwitch) {
  update("/w/1");
  wire::AdminReply other = reply("generate-1");
  other.weights.checksum = kSum + 1;
  answer(AdminAction::kStageWeights, {reply("generate-0"), other});
  answer(AdminAction::kDropWeights);
  ASSERT_EQ(ends_.size(), 1u);
  EXPECT_EQ(ends_[0].code(), StatusCode::kConflict);
  EXPECT_NE(ends_[0].message().find("generate-1 has loaded weights with the checksum"), std::string::npos);
  EXPECT_TRUE(required_.empty());
}

TEST_F(WeightUpdatesTest, AReplicaThatMissedAnUpdateGetsTheSameBytes) {
  update_without_one();
  EXPECT_TRUE(asked_.empty());
  tick_stale(1000);
  const PipelineCommand stage = answer(AdminAction::kStageWeights, {reply("generate-1")});
  EXPECT_EQ(stage.argument, "/w/1");
  EXPECT_EQ(stage.weight_version, 2u);
  EXPECT_EQ(stage.weights_checksum, kSum);
  EXPECT_EQ(stage.replica, std::optional<uint32_t>(1));
  EXPECT_EQ(answer(AdminAction::kSwitchWeights, {reply("generate-1")}).replica, std::optional<uint32_t>(1));
  updates_.tick(1020, {});
  EXPECT_TRUE(asked_.empty());
}

TEST_F(WeightUpdatesTest, AStaleReplicaIsTriedAgainWithLongerWaits) {
  update_without_one();
  int64_t now = 1000, wait = kCatchUpFirstMs;
  for (int i = 0; i < 12; ++i) {
    tick_stale(now);
    answer(AdminAction::kStageWeights, {reply("generate-1", StatusCode::kNotFound, "/w/1 is not there")});
    EXPECT_NE(notes_[1].find("/w/1 is not there; trying again in"), std::string::npos) << notes_[1];
    tick_stale(now + wait - 1);
    EXPECT_TRUE(asked_.empty()) << i;
    now += wait;
    wait = std::min(2 * wait, kCatchUpMaxMs);
  }
  EXPECT_EQ(wait, kCatchUpMaxMs);
  tick_stale(now);  // the folder is back
  EXPECT_EQ(notes_[1], "it loads /w/1");
  answer(AdminAction::kStageWeights, {reply("generate-1")});
  answer(AdminAction::kSwitchWeights, {reply("generate-1")});
  EXPECT_EQ(notes_[1], "");
}

TEST_F(WeightUpdatesTest, ARestartMakesTheNextTryDueAtOnce) {
  update_without_one();
  tick_stale(1000);
  answer(AdminAction::kStageWeights, {reply("generate-1", StatusCode::kUnavailable, "killed")});
  updates_.on_joined("detokenize", 0);
  updates_.on_joined("generate", 1);
  EXPECT_TRUE(asked_.empty());
  tick_stale(1020);
  answer(AdminAction::kStageWeights, {reply("generate-1")});
}

TEST_F(WeightUpdatesTest, AnUpdateMayComeWhileAReplicaCatchesUp) {
  update_without_one();
  tick_stale(1000);
  update("/w/2");
  EXPECT_TRUE(ends_.empty());  // it is not refused
  tick_stale(1020);
  EXPECT_EQ(notes_[1], "it waits for the end of the update that is under way");
  answer(AdminAction::kStageWeights, {reply("generate-1", StatusCode::kCancelled, "version 3 instead")});
  tick_stale(1040);
  EXPECT_EQ(asked_.size(), 1u);  // the update alone: it brings the stale replica too
  EXPECT_EQ(answer(AdminAction::kStageWeights).weight_version, 3u);
  answer(AdminAction::kSwitchWeights);
  ASSERT_TRUE(ends_.size() == 1 && ends_[0].ok());
}

TEST_F(WeightUpdatesTest, AnUpdateThatIsRefusedCostsNoReplicaItsCatchUp) {
  update_without_one();
  tick_stale(1000);
  update("/w/nowhere");
  answer(AdminAction::kStageWeights, {reply("generate-1", StatusCode::kCancelled, "version 3 instead")});
  answer(AdminAction::kStageWeights,
         {reply("generate-0", StatusCode::kNotFound), reply("generate-1", StatusCode::kNotFound)});
  answer(AdminAction::kDropWeights);
  ASSERT_TRUE(ends_.size() == 1 && !ends_[0].ok());
  tick_stale(1020);  // at once: it did not fail by itself
  EXPECT_EQ(answer(AdminAction::kStageWeights, {reply("generate-1")}).weight_version, 2u);
  EXPECT_EQ(answer(AdminAction::kSwitchWeights, {reply("generate-1")}).weight_version, 2u);
}

TEST_F(WeightUpdatesTest, OneThatDoesNotSwitchIsLeftOutAndCatchesUp) {
  update("/w/1");
  answer(AdminAction::kStageWeights);
  answer(AdminAction::kSwitchWeights, {reply("generate-0"), reply("generate-1", StatusCode::kDeadline, "silent")});
  ASSERT_TRUE(ends_.size() == 1 && ends_[0].ok());
  EXPECT_EQ(required_, std::vector<uint64_t>{2});
  tick_stale(1000);
  answer(AdminAction::kStageWeights, {reply("generate-1")});
  answer(AdminAction::kSwitchWeights, {reply("generate-1")});
  EXPECT_TRUE(asked_.empty());
}

TEST_F(WeightUpdatesTest, OneThatSwitchedWithoutAReplyGoesBackToTheWeightsOfTheStart) {
  update("/w/1");
  answer(AdminAction::kStageWeights);
  answer(AdminAction::kSwitchWeights, {reply("generate-1", StatusCode::kDeadline, "silent")});
  answer(AdminAction::kDropWeights, {});
  ASSERT_TRUE(ends_.size() == 1 && !ends_[0].ok());
  tick_stale(1000, 1, 5);
  const PipelineCommand stage = answer(AdminAction::kStageWeights, {reply("generate-1")});
  EXPECT_EQ(stage.argument, "");  // the model's own folder
  EXPECT_EQ(stage.weight_version, 1u);
  EXPECT_EQ(stage.weights_checksum, 5u);
}

TEST_F(WeightUpdatesTest, FewReplicasLoadAtTheSameTime) {
  update_without_one();
  std::vector<StaleReplica> all;
  for (uint32_t i = 0; i < 2 * kMaxCatchUps; ++i) all.push_back({"generate", i, {2, kSum}});
  updates_.tick(1000, all);
  EXPECT_EQ(asked_.size(), kMaxCatchUps);
}

TEST_F(WeightUpdatesTest, WhereNoneSwitchesTheOldVersionStays) {
  update("/w/1");
  answer(AdminAction::kStageWeights);
  answer(AdminAction::kSwitchWeights, {reply("generate-0", StatusCode::kUnavailable, "died")});
  answer(AdminAction::kDropWeights, {});
  ASSERT_EQ(ends_.size(), 1u);
  EXPECT_FALSE(ends_[0].ok());
  EXPECT_TRUE(required_.empty());
  EXPECT_EQ(accepted_, (std::vector<uint64_t>{2, 0}));  // one that switched without a reply is not placed
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

// A server that was started again, whose stages on other hosts went on.
TEST_F(WeightUpdatesTest, WeightsOfAnUpdateBeforeTheServersStartServeUnderTheirNumber) {
  updates_.on_known({});
  EXPECT_EQ(updates_.state().version, 1u);
  updates_.on_known({.required = 1, .newest = 1});
  EXPECT_EQ(updates_.state().version, 1u);
  updates_.on_known({.required = 4, .newest = 6});
  EXPECT_EQ(updates_.state().version, 4u);
  EXPECT_EQ(updates_.label(4), "4");
  tick_stale(1000, 4);  // nothing is known that could be loaded
  EXPECT_TRUE(asked_.empty());
  EXPECT_EQ(notes_[1], "this server does not know where they come from: update the weights");
  update("/w/c", "c");
  EXPECT_EQ(answer(AdminAction::kStageWeights).weight_version, 7u);
  answer(AdminAction::kSwitchWeights);
  updates_.on_known({.required = 7, .newest = 7});
  EXPECT_EQ(updates_.state().version, 7u);
  EXPECT_EQ(updates_.label(7), "c");
  tick_stale(2000, 7);
  EXPECT_EQ(answer(AdminAction::kStageWeights, {reply("generate-1")}).argument, "/w/c");
}

// A replica that has switched gives tokens while another one still switches.
TEST_F(WeightUpdatesTest, ALabelIsKnownBeforeTheLastReplicaHasSwitched) {
  update("/w/1", "one");
  EXPECT_EQ(updates_.label(2), "2");
  answer(AdminAction::kStageWeights);
  EXPECT_EQ(updates_.label(2), "one");
  EXPECT_EQ(updates_.state().label, "1");
  answer(AdminAction::kSwitchWeights,
         {reply("generate-0", StatusCode::kInternal, "no"), reply("generate-1", StatusCode::kUnavailable, "killed")});
  EXPECT_EQ(updates_.label(2), "2") << "it serves nowhere";
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
