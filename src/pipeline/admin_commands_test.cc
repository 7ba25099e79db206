// Admin commands: which replicas are asked, what each reply comes to, and what ends a command.
#include <gtest/gtest.h>

#include "pipeline/testing/coordinator_harness.h"

namespace millrace::testing {
namespace {

using AdminCommandsTest = CoordinatorHarness;

struct Answer {
  int calls = 0;
  std::vector<wire::AdminReply> replies;
  AdminCommands::Done done() {
    return [this](std::vector<wire::AdminReply> all) { ++calls, replies = std::move(all); };
  }
  const wire::AdminReply& of(const std::string& stage) const {
    for (const auto& reply : replies) {
      if (reply.stage == stage) return reply;
    }
    throw std::runtime_error("no reply of " + stage);
  }
};

TEST_F(AdminCommandsTest, ACommandGoesToAllAndEachAnswersOnce) {
  Answer answer;
  core->admin({.argument = "now", .timeout_ms = 1000}, answer.done(), now);
  for (const ReplicaView& replica : core->members().replicas()) {
    EXPECT_EQ(answer.calls, 0);
    const auto asked = box(replica.stage, replica.replica).take<wire::AdminRequest>();
    ASSERT_EQ(asked.size(), 1u);
    EXPECT_EQ(asked[0].argument, "now");
    EXPECT_EQ(asked[0].timeout_ms, 1000);
    core->handle(wire::AdminReply{asked[0].id, "whatever", StatusCode::kOk, "done by " + replica.name}, now);
    core->handle(wire::AdminReply{asked[0].id, "whatever", StatusCode::kInternal, "again"}, now);
  }
  ASSERT_EQ(answer.calls, 1);
  ASSERT_EQ(answer.replies.size(), 6u);
  EXPECT_EQ(answer.of("think-1").message, "done by think-1");
  EXPECT_EQ(core->books().late, 6u);
  expect_quiet();
}

TEST_F(AdminCommandsTest, SilentAndDeadStagesAreAnsweredFor) {
  core->down("tone", 0, 1, "killed", now);
  Answer answer;
  core->admin({.stages = {"decode", "talk", "tone"}, .timeout_ms = 1000}, answer.done(), now);
  EXPECT_TRUE(box("prepare").take<wire::AdminRequest>().empty());
  EXPECT_TRUE(box("tone").take<wire::AdminRequest>().empty());
  core->down("talk", 0, 1, "killed", now);
  pass(750 + kReplyGraceMs);
  EXPECT_EQ(answer.calls, 0);
  pass(250);
  ASSERT_EQ(answer.calls, 1);
  ASSERT_EQ(answer.replies.size(), 3u);
  EXPECT_EQ(answer.of("decode").code, StatusCode::kDeadline);
  EXPECT_EQ(answer.of("talk").code, StatusCode::kUnavailable);
  EXPECT_EQ(answer.of("tone").code, StatusCode::kUnavailable);
  // What comes too late, or from another stage, changes nothing.
  const auto asked = box("decode").take<wire::AdminRequest>();
  core->handle(wire::AdminReply{asked[0].id, "decode", StatusCode::kOk, ""}, now);
  EXPECT_EQ(answer.calls, 1);
  expect_quiet();
}

// A stage that lives on after its server answers the next one what it was asked before.
TEST_F(AdminCommandsTest, RepliesToAnEarlierServerAreNotAwaited) {
  Answer before, after;
  core->admin({.stages = {"decode"}, .timeout_ms = 1000}, before.done(), now);
  const auto asked = box("decode").take<wire::AdminRequest>();
  ASSERT_EQ(asked.size(), 1u);
  core =
      std::make_unique<Coordinator>(spec, library, CoordinatorOptions{.session = kSession + 1}, *this, payloads, now);
  all_join();
  core->admin({.stages = {"decode"}, .timeout_ms = 1000}, after.done(), now);
  core->handle(wire::AdminReply{asked[0].id, "decode", StatusCode::kOk, "of before"}, now);
  EXPECT_EQ(after.calls, 0);
  EXPECT_EQ(core->books().late, 1u);
  core->handle(wire::AdminReply{box("decode").take<wire::AdminRequest>().at(0).id, "decode", StatusCode::kOk, ""}, now);
  EXPECT_EQ(after.calls, 1);
}

TEST_F(AdminCommandsTest, TheStateIsAskedOfSchedulersThatRunAlone) {
  const auto report = [&](wire::StageState state) {
    wire::StageStatus status{.stage = "decode", .incarnation = 1, .state = state, .pages_total = 8};
    status.peers_epoch = core->members().epoch();
    core->handle(status, now);
  };
  const auto ask = [&](Answer& answer) {
    core->admin({.action = wire::AdminAction::kShowState, .timeout_ms = 1000}, answer.done(), now);
  };
  Answer first, second;
  report(wire::StageState::kReady);
  ask(first);
  const auto asked = box("decode").take<wire::AdminRequest>();
  ASSERT_EQ(asked.size(), 1u);
  EXPECT_TRUE(box("prepare").take<wire::AdminRequest>().empty());  // it has no pages
  core->handle(wire::AdminReply{asked[0].id, "decode", StatusCode::kOk, "{}"}, now);
  ASSERT_EQ(first.calls, 1);
  EXPECT_EQ(first.of("decode").message, "{}");
  EXPECT_EQ(first.of("prepare").code, StatusCode::kUnavailable);
  report(wire::StageState::kStalled);
  ask(second);
  EXPECT_TRUE(box("decode").take<wire::AdminRequest>().empty());
  ASSERT_EQ(second.calls, 1);
  EXPECT_EQ(second.of("decode").code, StatusCode::kUnavailable);
}

TEST_F(AdminCommandsTest, CommandsAreBoundedAndUnknownStagesRefused) {
  std::vector<Answer> answers(kMaxOpenCommands);
  for (Answer& answer : answers) core->admin({.timeout_ms = 60'000}, answer.done(), now);
  Answer refused, unknown;
  core->admin({.timeout_ms = 1}, refused.done(), now);
  EXPECT_EQ(refused.of("coordinator").code, StatusCode::kResourceExhausted);
  core->fail_all(Status(StatusCode::kUnavailable, "shutting down"), now);
  for (const Answer& answer : answers) {
    EXPECT_EQ(answer.calls, 1);
    EXPECT_EQ(answer.replies.size(), 6u);
    EXPECT_EQ(answer.replies[0].message, "shutting down");
  }
  core->admin({.stages = {"decode", "unknown"}}, unknown.done(), now);
  EXPECT_EQ(unknown.calls, 1);
  EXPECT_EQ(unknown.of("coordinator").code, StatusCode::kNotFound);
  expect_quiet();
}

// A frozen stage with a long lease, one of two: the update does not wait for it, and it is not even asked once it is
// known.
TEST_F(AdminCommandsTest, NewWeightsWaitForNoReplicaThatStandsStill) {
  make({.lease_ms = 600'000});
  all_join();
  const PipelineCommand stage{.action = wire::AdminAction::kStageWeights, .stages = {"think"}, .timeout_ms = 600'000};
  Answer frozen_meanwhile, frozen_before;
  core->admin(stage, frozen_meanwhile.done(), now);
  const auto asked = box("think", 0).take<wire::AdminRequest>();
  ASSERT_EQ(asked.size(), 1u);
  core->handle(wire::AdminReply{.id = asked[0].id, .weights = {.checksum = 5}}, now);
  EXPECT_EQ(box("think", 1).take<wire::AdminRequest>().size(), 1u);
  pass(kSilentMs - 250, "think-1");
  EXPECT_EQ(frozen_meanwhile.calls, 0);  // it may be slow
  pass(500, "think-1");
  ASSERT_EQ(frozen_meanwhile.calls, 1);
  EXPECT_EQ(frozen_meanwhile.of("think-0").weights.checksum, 5u);
  EXPECT_EQ(frozen_meanwhile.of("think-1").code, StatusCode::kUnavailable);
  EXPECT_NE(frozen_meanwhile.of("think-1").message.find("stalled"), std::string::npos);
  core->admin(stage, frozen_before.done(), now);
  EXPECT_TRUE(box("think", 1).take<wire::AdminRequest>().empty());
  const auto again = box("think", 0).take<wire::AdminRequest>();
  core->handle(wire::AdminReply{.id = again.at(0).id}, now);
  EXPECT_EQ(frozen_before.calls, 1);
}

// Where none is well there is nothing to wait for but the one that stands still: a slow machine fails no update.
TEST_F(AdminCommandsTest, NewWeightsWaitForTheOnlyReplica) {
  make({.lease_ms = 600'000});
  all_join();
  Answer answer;
  core->admin({.action = wire::AdminAction::kStageWeights, .stages = {"decode"}, .timeout_ms = 600'000}, answer.done(),
              now);
  pass(4 * kSilentMs, "decode");
  EXPECT_EQ(answer.calls, 0);
  core->handle(wire::AdminReply{.id = box("decode").take<wire::AdminRequest>().at(0).id}, now);
  EXPECT_EQ(answer.of("decode").code, StatusCode::kOk);
}

TEST_F(AdminCommandsTest, TheFirstFailureMayEndACommand) {
  PipelineCommand join{.action = wire::AdminAction::kJoinGroup, .stages = {"think"}, .timeout_ms = 120'000};
  join.ends_early = true;
  join.needed = 2;
  Answer died, down, refused;
  core->admin(join, died.done(), now);
  core->down("think", 1, 1, "killed by signal 9", now);
  pass(kOtherRepliesMs);
  EXPECT_EQ(died.calls, 0);
  pass(250);
  ASSERT_EQ(died.calls, 1);
  EXPECT_EQ(died.of("think-1").code, StatusCode::kUnavailable);
  EXPECT_EQ(died.of("think-0").code, StatusCode::kCancelled);
  EXPECT_NE(died.of("think-0").message.find("think-1: stopped: killed by signal 9"), std::string::npos);
  core->admin(join, down.done(), now);
  pass(kOtherRepliesMs + 250);
  EXPECT_EQ(down.calls, 1);
  join.needed = 1;  // think-1 is none of the group's
  core->admin(join, refused.done(), now);
  pass(kOtherRepliesMs + 250);
  EXPECT_EQ(refused.calls, 0);
  core->handle(wire::AdminReply{box("think", 0).take<wire::AdminRequest>().back().id, "", StatusCode::kConflict}, now);
  EXPECT_EQ(refused.of("think-0").code, StatusCode::kConflict);
  expect_quiet();
}

TEST_F(AdminCommandsTest, ATrainersUpdateDoesNotWaitForAFrozenReplica) {
  make({.lease_ms = 600'000});
  all_join();
  for (const char* stage : {"think", "decode"}) {  // one of two, and the only one
    Answer answer;
    core->admin({.action = wire::AdminAction::kAwaitWeights, .stages = {stage}, .timeout_ms = 660'000}, answer.done(),
                now);
    if (stage == std::string("think")) {
      core->handle(wire::AdminReply{.id = box("think", 0).take<wire::AdminRequest>().at(0).id}, now);
    }
    const std::string frozen = stage == std::string("think") ? "think-1" : "decode";
    pass(kFrozenReplicaMs - 250, frozen);
    EXPECT_EQ(answer.calls, 0);
    pass(250, frozen);
    ASSERT_EQ(answer.calls, 1);
    EXPECT_EQ(answer.of(frozen).code, StatusCode::kUnavailable);
    EXPECT_EQ(answer.of(frozen).message, "has sent no heartbeat for 60 s");
    // It drops what it has when it goes on; nothing waits for that.
    Answer dropped;
    core->admin({.action = wire::AdminAction::kDropWeights, .stages = {stage}, .timeout_ms = 30'000}, dropped.done(),
                now);
    if (stage == std::string("think")) {
      core->handle(wire::AdminReply{.id = box("think", 0).take<wire::AdminRequest>().at(0).id}, now);
    }
    core->tick(now += 1);
    EXPECT_EQ(dropped.calls, 1);
    const auto asked = box(stage, stage == std::string("think") ? 1 : 0).take<wire::AdminRequest>();
    EXPECT_EQ(asked.back().action, wire::AdminAction::kDropWeights);
  }
  expect_quiet();
}

TEST_F(AdminCommandsTest, AFullInboxIsAnAnswerToo) {
  box("tone").full = true;
  Answer answer;
  core->admin({.stages = {"tone"}, .timeout_ms = 1000}, answer.done(), now);
  EXPECT_EQ(answer.of("tone").code, StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace millrace::testing
