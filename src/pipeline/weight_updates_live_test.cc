// Updates that a trainer broadcasts, against replicas that a test plays: what is asked of them, and what each reply
// does.
#include <gtest/gtest.h>

#include <deque>

#include "base/log.h"
#include "pipeline/weight_updates.h"

namespace millrace {
namespace {

using Replies = std::vector<wire::AdminReply>;
using wire::AdminAction;
using Phase = WeightsState::Phase;

wire::AdminReply reply(const char* stage, StatusCode code = StatusCode::kOk, const char* message = "") {
  return {.stage = stage, .code = code, .message = message};
}
const Replies kBoth = {reply("generate-0"), reply("generate-1")};

class LiveUpdatesTest : public ::testing::Test {
 protected:
  LiveUpdatesTest() { log_init("test", LogLevel::kOff); }

  struct Asked {
    PipelineCommand command;
    AdminCommands::Done done;
  };

  void prepare() {
    WeightPlan plan{.group = "g", .buckets = {{{"w", DType::kBF16, {2}}}, {{"v", DType::kBF16, {2}}}}};
    updates_.prepare(plan, [this](const Status& status) { prepared_.push_back(status); });
  }
  void complete(const std::string& group = "g", bool last = true, int64_t timeout_ms = 0) {
    updates_.complete({.group = group, .label = "step", .last = last, .timeout_ms = timeout_ms},
                      [this](const Result<LiveUpdated>& updated) { completed_.push_back(updated); });
  }
  void abort(const std::optional<std::string>& group = std::nullopt) {
    updates_.abort_update(group, [this](const Status& status) { aborted_.push_back(status); });
  }
  // The oldest open command of this kind gets its replies.
  PipelineCommand answer(AdminAction action, Replies replies = kBoth) {
    for (auto it = asked_.begin(); it != asked_.end(); ++it) {
      if (it->command.action != action) continue;
      const Asked asked = *it;
      asked_.erase(it);
      asked.done(std::move(replies));
      return asked.command;
    }
    ADD_FAILURE() << "not asked";
    return {};
  }
  Phase phase() const { return updates_.state().phase; }

  std::deque<Asked> asked_;
  std::vector<RequiredWeights> required_;
  std::vector<Status> prepared_, aborted_;
  std::vector<std::string> notes_;
  std::vector<Result<LiveUpdated>> completed_;
  WeightUpdates::Env env() {
    return {.command =
                [this](PipelineCommand command, AdminCommands::Done done) {
                  asked_.push_back({command, std::move(done)});
                },
            .require = [this](RequiredWeights weights) { required_.push_back(weights); },
            .accept = [](RequiredWeights) {},
            .note = [this](const StageReplica&, std::string text) { notes_.push_back(std::move(text)); },
            .hold = [](bool) {},
            .in_flight = [] { return std::size_t{0}; }};
  }
  WeightUpdates updates_{{"generate"}, env()};
};

TEST_F(LiveUpdatesTest, PreparesReceivesAndSwitchesAtComplete) {
  prepare();
  EXPECT_EQ(phase(), Phase::kReceiving);
  EXPECT_TRUE(prepared_.empty());
  const PipelineCommand receive = answer(AdminAction::kReceiveWeights);
  EXPECT_EQ(receive.weight_version, 2u);
  EXPECT_NE(receive.argument.find("\"base_version\":1"), std::string::npos);
  ASSERT_TRUE(prepared_.size() == 1 && prepared_[0].ok());
  answer(AdminAction::kAwaitWeights);
  EXPECT_EQ(phase(), Phase::kStaged);
  complete();
  EXPECT_TRUE(completed_.empty());
  EXPECT_EQ(answer(AdminAction::kSwitchWeights).weight_version, 2u);
  answer(AdminAction::kHoldWeights);  // its reply, after the switch, changes nothing
  ASSERT_TRUE(completed_.size() == 1 && completed_[0].ok());
  EXPECT_EQ(completed_[0]->buckets, 2u);
  EXPECT_EQ(completed_[0]->label, "step");
  ASSERT_EQ(required_.size(), 1u);
  EXPECT_EQ(required_[0].version, 2u);
  EXPECT_TRUE(asked_.empty());
}

TEST_F(LiveUpdatesTest, CompleteMayComeBeforeTheLastByte) {
  prepare();
  answer(AdminAction::kReceiveWeights);
  complete();
  complete();  // of another trainer
  ASSERT_EQ(completed_.size(), 1u);
  EXPECT_EQ(completed_[0].status().code(), StatusCode::kConflict);
  answer(AdminAction::kAwaitWeights);
  answer(AdminAction::kSwitchWeights);
  ASSERT_EQ(completed_.size(), 2u);
  EXPECT_TRUE(completed_[1].ok());
}

TEST_F(LiveUpdatesTest, OneReplicaThatRefusesTheTensorsEndsItBeforeAByte) {
  prepare();
  complete();  // of a trainer that does not wait for prepare(): it gets the reason too
  answer(AdminAction::kReceiveWeights,
         {reply("generate-0"), reply("generate-1", StatusCode::kInvalidArgument, "no w")});
  EXPECT_TRUE(prepared_.empty() && completed_.empty());  // until the other one waits no more
  answer(AdminAction::kDropWeights);
  ASSERT_TRUE(prepared_.size() == 1 && completed_.size() == 1);
  for (const Status& why : {prepared_[0], completed_[0].status()}) EXPECT_EQ(why.message(), "generate-1: no w");
  complete();
  ASSERT_TRUE(completed_.size() == 2 && phase() == Phase::kIdle);
  EXPECT_EQ(completed_[1].status().code(), StatusCode::kConflict);
}

TEST_F(LiveUpdatesTest, AFailureIsReportedByCompleteOnce) {
  prepare();
  answer(AdminAction::kReceiveWeights);
  answer(AdminAction::kAwaitWeights, {reply("generate-0"), reply("generate-1", StatusCode::kUnavailable, "closed")});
  EXPECT_EQ(phase(), Phase::kStaged);  // a replica that is gone holds up no other: it is stale
  abort();
  answer(AdminAction::kDropWeights);
  prepare();
  answer(AdminAction::kReceiveWeights);
  answer(AdminAction::kAwaitWeights, {reply("generate-0", StatusCode::kInvalidArgument, "rank 0 sends 3 bytes")});
  answer(AdminAction::kDropWeights);
  EXPECT_EQ(phase(), Phase::kIdle);
  complete();
  complete();
  ASSERT_EQ(completed_.size(), 2u);
  EXPECT_EQ(completed_[0].status().message(), "generate-0: rank 0 sends 3 bytes");
  EXPECT_EQ(completed_[1].status().code(), StatusCode::kConflict);
  EXPECT_TRUE(required_.empty());
}

// Also where it is aborted or completed, or its group destroyed, while what it has staged is dropped.
TEST_F(LiveUpdatesTest, AFailedUpdateEndsOnce) {
  const auto fail = [this] {
    prepare();
    answer(AdminAction::kReceiveWeights);
    answer(AdminAction::kAwaitWeights, {reply("generate-0", StatusCode::kInvalidArgument, "rank 0 sends 3 bytes")});
  };
  fail();
  abort();
  EXPECT_TRUE(aborted_.empty());
  answer(AdminAction::kDropWeights);
  ASSERT_EQ(aborted_.size(), 1u);
  EXPECT_TRUE(aborted_[0].ok());
  fail();
  updates_.leave_group("g", [](const Status&) {});
  answer(AdminAction::kDropWeights);
  EXPECT_EQ(phase(), Phase::kIdle);
  fail();
  complete();
  EXPECT_TRUE(completed_.empty());
  answer(AdminAction::kDropWeights);
  ASSERT_EQ(completed_.size(), 1u);
  EXPECT_EQ(completed_[0].status().message(), "generate-0: rank 0 sends 3 bytes");
  prepare();
  EXPECT_EQ(phase(), Phase::kReceiving);
  for (const Asked& asked : asked_) EXPECT_NE(asked.command.action, AdminAction::kDropWeights);
}

// The time for /complete is over, and what was staged is being dropped.
TEST_F(LiveUpdatesTest, ACompleteThatComesTooLateSwitchesNothing) {
  prepare();
  answer(AdminAction::kReceiveWeights);
  answer(AdminAction::kAwaitWeights);
  answer(AdminAction::kHoldWeights, {reply("generate-0", StatusCode::kDeadline, "held for 600 s")});
  complete();
  for (const Asked& asked : asked_) EXPECT_NE(asked.command.action, AdminAction::kSwitchWeights);
  answer(AdminAction::kDropWeights);
  ASSERT_EQ(completed_.size(), 1u);
  EXPECT_EQ(completed_[0].status().code(), StatusCode::kDeadline);
  EXPECT_EQ(phase(), Phase::kIdle);
}

TEST_F(LiveUpdatesTest, ReplicasWithOtherBytesDoNotSwitch) {
  prepare();
  answer(AdminAction::kReceiveWeights);
  complete();
  Replies replies = kBoth;
  replies[0].weights.checksum = 1;
  replies[1].weights.checksum = 2;
  answer(AdminAction::kAwaitWeights, replies);
  answer(AdminAction::kDropWeights);
  ASSERT_EQ(completed_.size(), 1u);
  EXPECT_EQ(completed_[0].status().code(), StatusCode::kConflict);
  EXPECT_EQ(phase(), Phase::kIdle);
}

TEST_F(LiveUpdatesTest, AnAbortEndsItInEveryStateBeforeTheSwitch) {
  abort();
  EXPECT_EQ(aborted_.back().code(), StatusCode::kConflict);
  prepare();
  abort();
  answer(AdminAction::kDropWeights);
  EXPECT_TRUE(aborted_.back().ok());
  answer(AdminAction::kReceiveWeights);  // too late
  EXPECT_EQ(prepared_.back().code(), StatusCode::kCancelled);
  prepare();
  answer(AdminAction::kReceiveWeights);
  complete();
  abort();
  EXPECT_TRUE(completed_.empty());
  answer(AdminAction::kDropWeights);
  EXPECT_EQ(completed_.back().status().code(), StatusCode::kCancelled);
  answer(AdminAction::kAwaitWeights, {reply("generate-0", StatusCode::kCancelled)});
  EXPECT_EQ(phase(), Phase::kIdle);
  prepare();
  answer(AdminAction::kReceiveWeights);
  answer(AdminAction::kAwaitWeights);
  complete();
  abort();  // all replicas are switching
  EXPECT_EQ(aborted_.back().code(), StatusCode::kConflict);
}

TEST_F(LiveUpdatesTest, AnAbortOfAnotherGroupIsRefused) {
  abort("g");
  EXPECT_EQ(aborted_.back().code(), StatusCode::kConflict);
  prepare();
  answer(AdminAction::kReceiveWeights);
  abort("other");
  EXPECT_EQ(aborted_.back().message(), "group_name is 'other'; wanted 'g', which sends the weights");
  EXPECT_EQ(phase(), Phase::kReceiving);
  abort("g");
  answer(AdminAction::kDropWeights);
  EXPECT_TRUE(aborted_.back().ok());
  EXPECT_EQ(updates_.state().last_error, "the update of the group 'g' was aborted with 0 of 2 buckets received");
  answer(AdminAction::kAwaitWeights, {reply("generate-0", StatusCode::kCancelled)});
  // A failed one is not another group's to clear, and its reason stays in the status.
  prepare();
  answer(AdminAction::kReceiveWeights);
  answer(AdminAction::kAwaitWeights, {reply("generate-0", StatusCode::kInvalidArgument, "3 bytes")});
  answer(AdminAction::kDropWeights);
  abort("other");
  EXPECT_EQ(aborted_.back().code(), StatusCode::kConflict);
  abort("g");
  EXPECT_TRUE(aborted_.back().ok());
  EXPECT_EQ(updates_.state().last_error, "generate-0: 3 bytes");
  complete();
  EXPECT_EQ(completed_.back().status().code(), StatusCode::kConflict);
}

TEST_F(LiveUpdatesTest, TheStatusHasWhatTheSlowestReplicaReceived) {
  const auto status = [](double version, double buckets, double bytes) {
    return wire::StageStatus{.metrics = {{kReceivingVersionMetric, version},
                                         {kReceivedBucketsMetric, buckets},
                                         {kReceivedBytesMetric, bytes}}};
  };
  const auto received = [this] {
    const WeightsState state = updates_.state();
    return std::make_pair(state.buckets_received, state.bytes_received);
  };
  prepare();
  answer(AdminAction::kReceiveWeights);
  EXPECT_EQ(updates_.state().group, "g");
  EXPECT_EQ(updates_.state().bytes, 8u);
  updates_.on_status({status(1, 2, 8), {}});  // of another update
  EXPECT_EQ(received(), std::make_pair(uint64_t{0}, uint64_t{0}));
  updates_.on_status({status(2, 1, 6), status(2, 1, 5)});
  EXPECT_EQ(received(), std::make_pair(uint64_t{1}, uint64_t{5}));
  answer(AdminAction::kAwaitWeights, {reply("generate-0", StatusCode::kDeadline, "no byte"),
                                      reply("generate-1", StatusCode::kUnavailable, "died")});
  answer(AdminAction::kDropWeights);
  EXPECT_EQ(received(), std::make_pair(uint64_t{1}, uint64_t{5}));  // how far it came
  EXPECT_EQ(updates_.state().last_error, "generate-0: no byte; generate-1: died");
  prepare();
  EXPECT_EQ(received(), std::make_pair(uint64_t{0}, uint64_t{0}));
  answer(AdminAction::kReceiveWeights);
  answer(AdminAction::kAwaitWeights);
  EXPECT_EQ(received(), std::make_pair(uint64_t{2}, uint64_t{8}));
}

TEST_F(LiveUpdatesTest, AnUpdateMayHaveRounds) {
  prepare();
  answer(AdminAction::kReceiveWeights);
  complete("g", false);  // before the last byte
  answer(AdminAction::kAwaitWeights);
  ASSERT_TRUE(completed_.size() == 1 && completed_[0].ok());
  EXPECT_EQ(completed_[0]->buckets, 2u);
  EXPECT_EQ(completed_[0]->label, "1");
  EXPECT_EQ(phase(), Phase::kStaged);
  prepare();
  const PipelineCommand second = answer(AdminAction::kReceiveWeights);
  EXPECT_EQ(second.weight_version, 2u);
  EXPECT_NE(second.argument.find("\"round\":1"), std::string::npos);
  EXPECT_EQ(updates_.state().buckets, 4u);
  EXPECT_EQ(updates_.state().buckets_received, 2u);
  answer(AdminAction::kHoldWeights);  // of the first round
  answer(AdminAction::kAwaitWeights);
  complete("g", false);  // after the last byte
  EXPECT_EQ(completed_.size(), 2u);
  updates_.prepare({.group = "other"}, [this](const Status& status) { prepared_.push_back(status); });
  EXPECT_EQ(prepared_.back().code(), StatusCode::kConflict);
  complete();
  prepare();  // too late: it switches
  EXPECT_EQ(prepared_.back().code(), StatusCode::kConflict);
  EXPECT_EQ(answer(AdminAction::kSwitchWeights).weight_version, 2u);
  ASSERT_EQ(completed_.size(), 3u);
  EXPECT_EQ(completed_[2]->buckets, 4u);
  EXPECT_EQ(required_.size(), 1u);
}

TEST_F(LiveUpdatesTest, AFailedRoundDropsThoseBefore) {
  prepare();
  answer(AdminAction::kReceiveWeights);
  answer(AdminAction::kAwaitWeights);
  prepare();  // the first round is not completed
  EXPECT_EQ(prepared_.back().code(), StatusCode::kConflict);
  complete("g", false);
  prepare();
  answer(AdminAction::kReceiveWeights, {reply("generate-0", StatusCode::kInvalidArgument, "no w"), kBoth[1]});
  EXPECT_EQ(answer(AdminAction::kDropWeights).weight_version, 2u);
  EXPECT_EQ(prepared_.back().message(), "generate-0: no w");
  EXPECT_EQ(phase(), Phase::kIdle);
  EXPECT_TRUE(required_.empty());
}

TEST_F(LiveUpdatesTest, CompleteWaitsForItsTimeAndTheUpdateGoesOn) {
  updates_.tick(1000, {});
  prepare();
  answer(AdminAction::kReceiveWeights);
  complete("g", true, 5000);
  updates_.tick(5999, {});
  EXPECT_TRUE(completed_.empty());
  updates_.tick(6000, {});
  ASSERT_EQ(completed_.size(), 1u);
  EXPECT_EQ(completed_[0].status().code(), StatusCode::kDeadline);
  EXPECT_NE(completed_[0].status().message().find("0 of 2 buckets"), std::string::npos);
  EXPECT_EQ(phase(), Phase::kReceiving);
  complete("g", true, 5000);
  answer(AdminAction::kAwaitWeights);
  updates_.tick(60'000, {});  // it switches: nothing is late
  answer(AdminAction::kSwitchWeights);
  ASSERT_EQ(completed_.size(), 2u);
  EXPECT_TRUE(completed_[1].ok());
}

TEST_F(LiveUpdatesTest, OneCallReceivesAndSwitches) {
  const auto update = [this] {
    updates_.receive_and_complete({.group = "g", .buckets = {{{"w", DType::kBF16, {2}}}}}, {.group = "g"},
                                  [this](const Result<LiveUpdated>& updated) { completed_.push_back(updated); });
  };
  update();
  answer(AdminAction::kReceiveWeights, {reply("generate-0", StatusCode::kInvalidArgument, "no w")});
  answer(AdminAction::kDropWeights);
  ASSERT_EQ(completed_.size(), 1u);
  EXPECT_EQ(completed_[0].status().message(), "generate-0: no w");
  update();
  answer(AdminAction::kReceiveWeights);
  answer(AdminAction::kAwaitWeights);
  answer(AdminAction::kSwitchWeights);
  ASSERT_EQ(completed_.size(), 2u);
  EXPECT_TRUE(completed_[1].ok());
}

TEST_F(LiveUpdatesTest, WhatIsNeverCompletedIsDropped) {
  prepare();
  answer(AdminAction::kReceiveWeights);
  answer(AdminAction::kAwaitWeights);
  answer(AdminAction::kHoldWeights,
         {reply("generate-0", StatusCode::kDeadline), reply("generate-1", StatusCode::kDeadline)});
  answer(AdminAction::kDropWeights);
  EXPECT_EQ(phase(), Phase::kIdle);
  complete();
  EXPECT_EQ(completed_.back().status().code(), StatusCode::kDeadline);
}

TEST_F(LiveUpdatesTest, DestroyingTheGroupEndsItsUpdate) {
  std::vector<Status> left;
  const auto leave = [&](const char* name) {
    updates_.leave_group(name, [&left](const Status& status) { left.push_back(status); });
  };
  prepare();
  answer(AdminAction::kReceiveWeights);
  leave("other");
  answer(AdminAction::kLeaveGroup,
         {reply("generate-0", StatusCode::kNotFound), reply("generate-1", StatusCode::kNotFound)});
  EXPECT_EQ(left.back().code(), StatusCode::kNotFound);
  EXPECT_EQ(phase(), Phase::kReceiving);
  leave("g");
  answer(AdminAction::kDropWeights);
  answer(AdminAction::kLeaveGroup,
         {reply("generate-0", StatusCode::kNotFound), reply("generate-1", StatusCode::kNotFound)});
  EXPECT_TRUE(left.back().ok());
  EXPECT_EQ(phase(), Phase::kIdle);
  complete();
  EXPECT_EQ(completed_.back().status().message(), "the group 'g' was destroyed");
}

// Nothing could be loaded: the weights of a trainer are in no folder.
TEST_F(LiveUpdatesTest, AStaleReplicaWaitsForTheNextUpdate) {
  prepare();
  answer(AdminAction::kReceiveWeights);
  complete();
  answer(AdminAction::kAwaitWeights);
  answer(AdminAction::kSwitchWeights);
  const std::vector<StaleReplica> stale = {{"generate", 1, {.version = 2, .checksum = 0}}};
  updates_.tick(1000, stale);
  answer(AdminAction::kWriteWeights, {reply("generate-0", StatusCode::kUnsupported, "no folder")});
  EXPECT_EQ(notes_.back(), "it waits for a snapshot of them");
  updates_.tick(2000, stale);
  EXPECT_TRUE(asked_.empty());
  EXPECT_EQ(notes_.back(), "this server does not know where they come from: update the weights");
}

TEST_F(LiveUpdatesTest, AStaleReplicaLoadsTheSnapshot) {
  prepare();
  answer(AdminAction::kReceiveWeights);
  complete();
  answer(AdminAction::kAwaitWeights);
  answer(AdminAction::kSwitchWeights);
  const std::vector<StaleReplica> stale = {{"generate", 1, {.version = 2, .checksum = 77}}};
  updates_.tick(1000, stale);
  EXPECT_EQ(answer(AdminAction::kWriteWeights, {reply("generate-0", StatusCode::kOk, "/s/2")}).replica, 0u);
  EXPECT_EQ(updates_.state().snapshot.path, "/s/2");
  updates_.tick(2000, stale);
  const PipelineCommand load = answer(AdminAction::kStageWeights, {reply("generate-1")});
  EXPECT_TRUE(load.argument == "/s/2" && load.replica == 1u && load.weight_version == 2 && load.weights_checksum == 77);
  answer(AdminAction::kSwitchWeights, {reply("generate-1")});
  EXPECT_EQ(notes_.back(), "");
}

// One replica generates and two compute prompts: only the first one is asked, at each try.
TEST_F(LiveUpdatesTest, TheFirstStageWritesTheSnapshot) {
  WeightUpdates updates({"generate", "prefill"}, env(), true, 1);
  const Replies all = {reply("generate"), reply("prefill-0"), reply("prefill-1")};
  updates.receive_and_complete({.group = "g", .buckets = {{{"w", DType::kBF16, {2}}}}}, {.group = "g"},
                               [this](const Result<LiveUpdated>& updated) { completed_.push_back(updated); });
  for (const AdminAction action :
       {AdminAction::kReceiveWeights, AdminAction::kAwaitWeights, AdminAction::kSwitchWeights}) {
    answer(action, all);
  }
  ASSERT_TRUE(completed_.size() == 1 && completed_[0].ok());
  for (int64_t i = 1; i <= kSnapshotTries; ++i) {
    updates.tick(i * kSnapshotMaxMs, {});
    const PipelineCommand write = answer(AdminAction::kWriteWeights, {reply("generate", StatusCode::kUnavailable)});
    EXPECT_TRUE(write.stages == std::vector<std::string>{"generate"} && write.replica == 0u) << i;
  }
}

TEST_F(LiveUpdatesTest, OneUpdateAtATimeOfAnyKind) {
  prepare();
  const Status disk = updates_.update_from_disk({.path = "/w"}, [](const Status&) {});
  EXPECT_EQ(disk.code(), StatusCode::kConflict);
  prepare();
  ASSERT_EQ(prepared_.size(), 1u);
  EXPECT_EQ(prepared_[0].code(), StatusCode::kConflict);
}

TEST_F(LiveUpdatesTest, AGroupIsJoinedByAllReplicas) {
  std::vector<Status> joined;
  updates_.join_group({.address = "127.0.0.1", .port = 5, .rank_offset = 1, .world_size = 3, .name = "g"},
                      [&joined](const Status& status) { joined.push_back(status); });
  const PipelineCommand join =
      answer(AdminAction::kJoinGroup, {reply("generate-0"), reply("generate-1", StatusCode::kDeadline)});
  EXPECT_NE(join.argument.find("\"world_size\":3"), std::string::npos);
  EXPECT_TRUE(join.ends_early);
  EXPECT_EQ(join.needed, 2u);
  EXPECT_EQ(joined.at(0).code(), StatusCode::kDeadline);
}

TEST_F(LiveUpdatesTest, AReplicaThatDiesEndsTheJoinOfAll) {
  std::vector<Status> joined;
  const auto join = [&](int world_size) {
    updates_.join_group({.address = "127.0.0.1", .port = 5, .world_size = world_size, .name = "g"},
                        [&joined](const Status& status) { joined.push_back(status); });
  };
  const Replies died = {reply("generate-0", StatusCode::kCancelled, "was not waited for"),
                        reply("generate-1", StatusCode::kUnavailable, "stopped: killed")};
  join(3);
  answer(AdminAction::kJoinGroup, died);
  EXPECT_EQ(joined.back().message(), "generate-1: stopped: killed");
  EXPECT_EQ(updates_.state().last_error, "generate-1: stopped: killed");
  EXPECT_EQ(answer(AdminAction::kLeaveGroup).argument, "g");  // the others wait no more
  join(3);
  answer(AdminAction::kJoinGroup, {reply("generate-0"), reply("generate-1", StatusCode::kUnavailable, "stopped")});
  EXPECT_EQ(joined.back().code(), StatusCode::kUnavailable);  // a rank of the group is missing
  answer(AdminAction::kLeaveGroup);
  join(2);
  answer(AdminAction::kJoinGroup, {reply("generate-0"), reply("generate-1", StatusCode::kUnavailable, "stopped")});
  EXPECT_TRUE(joined.back().ok());  // the group has no rank for it
  // A trainer that starts again joins under the same name: that group is not left.
  join(3);
  answer(AdminAction::kJoinGroup, {reply("generate-0", StatusCode::kCancelled), reply("generate-1", StatusCode::kOk)});
  EXPECT_EQ(joined.back().code(), StatusCode::kCancelled);
  EXPECT_TRUE(asked_.empty());
}

}  // namespace
}  // namespace millrace
