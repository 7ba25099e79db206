// Pauses that wait for the requests in flight, of a pipeline that a test plays.
#include "pipeline/pauses.h"

#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "base/log.h"

namespace millrace {
namespace {

using wire::AdminAction;

class PausesTest : public ::testing::Test {
 protected:
  PausesTest() { log_init("test", LogLevel::kOff); }

  void pause_when_idle() {
    pauses_.pause_when_idle([this](const Status& status) { ends_.push_back(status); });
  }
  void tick(int64_t now_ms) { pauses_.tick(now_ms); }
  // The one command that was sent, which must be of this kind, gets its reply.
  PipelineCommand answer(AdminAction action, StatusCode code = StatusCode::kOk) {
    if (!asked_) {
      ADD_FAILURE() << "nothing is asked";
      return {};
    }
    const PipelineCommand command = asked_->command;
    EXPECT_EQ(command.action, action);
    const AdminCommands::Done done = std::exchange(asked_, std::nullopt)->done;
    done({{.stage = "generate-0", .code = code}});
    return command;
  }

  struct Asked {
    PipelineCommand command;
    AdminCommands::Done done;
  };
  std::optional<Asked> asked_;
  bool refuse_next_ = false;  // as too many are open
  bool held_ = false;
  std::size_t in_flight_ = 0;
  std::function<void()> meanwhile_;  // what another thread does when in_flight() is asked next
  std::vector<Status> ends_;
  Pauses pauses_{{"generate"},
                 {.command =
                      [this](PipelineCommand command, AdminCommands::Done done) {
                        EXPECT_FALSE(asked_);
                        if (std::exchange(refuse_next_, false)) {
                          return done({{.stage = kCoordinatorName, .code = StatusCode::kResourceExhausted}});
                        }
                        asked_ = {std::move(command), std::move(done)};
                      },
                  .hold = [this](bool held) { held_ = held; },
                  .in_flight =
                      [this] {
                        if (const auto meanwhile = std::exchange(meanwhile_, nullptr)) meanwhile();
                        return in_flight_;
                      }}};
};

TEST_F(PausesTest, PausesOnceNothingIsInFlight) {
  in_flight_ = 2;
  pause_when_idle();
  EXPECT_TRUE(held_ && pauses_.state().pausing && !pauses_.state().paused);
  tick(1000);
  in_flight_ = 1;
  tick(1000 + kPauseWaitMs - 1);
  EXPECT_TRUE(held_ && !asked_ && ends_.empty());
  in_flight_ = 0;
  tick(1000 + kPauseWaitMs);
  EXPECT_EQ(answer(AdminAction::kPause).policy, wire::InFlightPolicy::kInPlace);
  ASSERT_EQ(ends_.size(), 1u);
  EXPECT_TRUE(ends_[0].ok() && !held_);  // what came meanwhile waits in the stages
  EXPECT_TRUE(pauses_.state().paused && !pauses_.state().pausing);
  tick(1000 + 2 * kPauseWaitMs);
  EXPECT_TRUE(!asked_ && ends_.size() == 1);
}

TEST_F(PausesTest, HasALimitAfterWhichNothingIsPaused) {
  in_flight_ = 3;
  pause_when_idle();
  tick(50'000);
  tick(50'000 + kPauseWaitMs);
  ASSERT_EQ(ends_.size(), 1u);
  EXPECT_EQ(ends_[0].code(), StatusCode::kDeadline);
  EXPECT_EQ(ends_[0].message(), "3 requests are still in flight after 300 s, the limit: nothing is paused");
  EXPECT_TRUE(!held_ && !asked_ && !pauses_.state().paused && !pauses_.state().pausing);
}

TEST_F(PausesTest, AnotherPauseOrAResumeComesFirst) {
  in_flight_ = 1;
  pause_when_idle();
  tick(0);
  pauses_.resume([](const Status&) {});
  answer(AdminAction::kContinue);
  ASSERT_EQ(ends_.size(), 1u);
  EXPECT_TRUE(ends_[0].code() == StatusCode::kCancelled && !held_);
  pause_when_idle();
  pause_when_idle();  // the second one waits on
  ASSERT_EQ(ends_.size(), 2u);
  EXPECT_TRUE(ends_[1].code() == StatusCode::kCancelled && held_ && pauses_.state().pausing);
  pauses_.pause(wire::InFlightPolicy::kInPlace, [](const Status&) {});
  answer(AdminAction::kPause);
  ASSERT_EQ(ends_.size(), 3u);
  EXPECT_TRUE(ends_[2].code() == StatusCode::kCancelled && !held_ && pauses_.state().paused);
  pause_when_idle();  // the request in flight stands still
  ASSERT_EQ(ends_.size(), 4u);
  EXPECT_TRUE(ends_[3].code() == StatusCode::kConflict && !held_ && pauses_.state().paused);
  in_flight_ = 0;
  pause_when_idle();
  tick(1);
  answer(AdminAction::kPause);
  EXPECT_TRUE(ends_.size() == 5 && ends_[4].ok() && pauses_.state().paused);
}

TEST_F(PausesTest, TheRepliesOfTheFirstDoNotLetRequestsIntoTheSecond) {
  pause_when_idle();
  tick(1);
  pause_when_idle();
  answer(AdminAction::kPause);
  ASSERT_EQ(ends_.size(), 1u);
  EXPECT_TRUE(ends_[0].ok() && pauses_.state().paused && pauses_.state().pausing);
  EXPECT_TRUE(held_) << "a request that begins now never ends";
  tick(2);
  answer(AdminAction::kPause);
  ASSERT_EQ(ends_.size(), 2u);
  EXPECT_TRUE(ends_[1].ok() && !held_ && pauses_.state().paused && !pauses_.state().pausing);
}

TEST_F(PausesTest, TwoAtOnceBothEnd) {
  meanwhile_ = [this] { pause_when_idle(); };
  pause_when_idle();
  ASSERT_EQ(ends_.size(), 1u);
  EXPECT_TRUE(ends_[0].code() == StatusCode::kCancelled && held_ && pauses_.state().pausing);
  tick(1);
  answer(AdminAction::kPause);
  EXPECT_TRUE(ends_.size() == 2 && ends_[1].ok() && !held_);
}

// The tick has asked what is in flight for the wait before.
TEST_F(PausesTest, ATickPausesNoOtherWaitThanItLookedAt) {
  pause_when_idle();
  meanwhile_ = [this] { pause_when_idle(); };
  tick(1);
  EXPECT_TRUE(!asked_ && held_ && pauses_.state().pausing);
  tick(2);
  answer(AdminAction::kPause);
  EXPECT_TRUE(ends_.size() == 2 && ends_[0].code() == StatusCode::kCancelled && ends_[1].ok() && !held_);
}

TEST_F(PausesTest, AStageThatDoesNotPauseIsReported) {
  pause_when_idle();
  tick(1);
  answer(AdminAction::kPause, StatusCode::kInternal);
  ASSERT_EQ(ends_.size(), 1u);
  EXPECT_TRUE(ends_[0].code() == StatusCode::kInternal && !held_ && !pauses_.state().paused);
  EXPECT_EQ(answer(AdminAction::kContinue).stages, std::vector<std::string>{"generate"}) << "those that did pause";
}

TEST_F(PausesTest, APauseThatFailsLeavesNoReplicaPaused) {
  pauses_.pause(wire::InFlightPolicy::kAbort, [this](const Status& status) { ends_.push_back(status); });
  answer(AdminAction::kPause, StatusCode::kDeadline);  // a replica that computes, or loads
  EXPECT_TRUE(ends_.size() == 1 && ends_[0].code() == StatusCode::kDeadline && !pauses_.state().paused);
  answer(AdminAction::kContinue);
  EXPECT_TRUE(!asked_ && !pauses_.state().paused);
  // A second pause that fails: all are paused still.
  pauses_.pause(wire::InFlightPolicy::kAbort, [](const Status&) {});
  answer(AdminAction::kPause);
  pauses_.pause(wire::InFlightPolicy::kAbort, [](const Status&) {});
  answer(AdminAction::kPause, StatusCode::kDeadline);
  EXPECT_TRUE(!asked_ && pauses_.state().paused);
}

// The replica has the command and continues when it gets to it.
TEST_F(PausesTest, AResumeThatOneReplicaAnswersLateIsNoPause) {
  pauses_.pause(wire::InFlightPolicy::kInPlace, [](const Status&) {});
  answer(AdminAction::kPause);
  pauses_.resume([this](const Status& status) { ends_.push_back(status); });
  answer(AdminAction::kContinue, StatusCode::kDeadline);
  EXPECT_TRUE(ends_.size() == 1 && ends_[0].code() == StatusCode::kDeadline && !pauses_.state().paused);
}

// Too many commands are open: no stage has got it.
TEST_F(PausesTest, ACommandThatWasNotSentChangesNothing) {
  refuse_next_ = true;
  pauses_.pause(wire::InFlightPolicy::kInPlace, [this](const Status& status) { ends_.push_back(status); });
  EXPECT_TRUE(!asked_ && ends_.size() == 1 && !pauses_.state().paused);
  pauses_.pause(wire::InFlightPolicy::kInPlace, [](const Status&) {});
  answer(AdminAction::kPause);
  refuse_next_ = true;
  pauses_.resume([this](const Status& status) { ends_.push_back(status); });
  EXPECT_TRUE(!asked_ && ends_.size() == 2 && pauses_.state().paused);
}

TEST_F(PausesTest, AReplicaWhoseCommandWasRefusedIsAskedAgain) {
  pauses_.pause(wire::InFlightPolicy::kInPlace, [](const Status&) {});
  answer(AdminAction::kPause);
  refuse_next_ = true;
  pauses_.on_joined("generate", 17);
  EXPECT_FALSE(asked_);
  refuse_next_ = true;
  tick(1);
  EXPECT_FALSE(asked_);
  tick(2);
  EXPECT_EQ(answer(AdminAction::kPause).replica, 17u);
  tick(3);
  EXPECT_FALSE(asked_);
}

// Commands whose replies come later than what happens next.
class PausesJoinTest : public ::testing::Test {
 protected:
  PausesJoinTest() { log_init("test", LogLevel::kOff); }

  void pause(wire::InFlightPolicy policy = wire::InFlightPolicy::kInPlace) {
    pauses_.pause(policy, [](const Status&) {});
  }
  void resume() {
    pauses_.resume([](const Status&) {});
  }
  // The reply of replica 0; replica 1 is down.
  void answer(std::size_t which, StatusCode code = StatusCode::kOk) {
    const AdminCommands::Done done = asked_.at(which).second;
    done({{.stage = "generate-0", .code = code}, {.stage = "generate-1", .code = StatusCode::kUnavailable}});
  }
  // What was sent to replica 1 alone, from the one of that number on.
  std::vector<AdminAction> sent(std::size_t from = 0) const {
    std::vector<AdminAction> out;
    for (std::size_t i = from; i < asked_.size(); ++i) {
      const PipelineCommand& command = asked_[i].first;
      if (command.replica == 1u && command.stages == std::vector<std::string>{"generate"})
        out.push_back(command.action);
    }
    return out;
  }

  std::vector<std::pair<PipelineCommand, AdminCommands::Done>> asked_;
  Pauses pauses_{
      {"generate"},
      {.command = [this](PipelineCommand command,
                         AdminCommands::Done done) { asked_.emplace_back(std::move(command), std::move(done)); },
       .hold = [](bool) {},
       .in_flight = [] { return std::size_t{0}; }}};
};

TEST_F(PausesJoinTest, AReplicaThatJoinsDuringAResumeRuns) {
  pause();
  answer(0);
  ASSERT_TRUE(pauses_.state().paused);
  resume();
  pauses_.on_joined("generate", 1);
  answer(1);
  EXPECT_FALSE(pauses_.state().paused);
  ASSERT_FALSE(sent().empty());
  EXPECT_EQ(sent().back(), AdminAction::kContinue);
}

TEST_F(PausesJoinTest, AReplicaThatJoinsDuringAPauseIsPaused) {
  pause(wire::InFlightPolicy::kRetract);
  pauses_.on_joined("generate", 1);
  ASSERT_EQ(sent(), std::vector<AdminAction>{AdminAction::kPause});  // at once, before its first request
  answer(0);
  ASSERT_TRUE(pauses_.state().paused);
  EXPECT_EQ(sent().back(), AdminAction::kPause);
  EXPECT_EQ(asked_.back().first.policy, wire::InFlightPolicy::kRetract);
}

TEST_F(PausesJoinTest, AfterAFailureItGetsTheStateThatStays) {
  pause();
  pauses_.on_joined("generate", 1);
  answer(0, StatusCode::kInternal);
  ASSERT_TRUE(!pauses_.state().paused && !sent().empty());
  EXPECT_EQ(sent().back(), AdminAction::kContinue);
  pause();
  answer(asked_.size() - 1);
  resume();
  const std::size_t resumed = asked_.size() - 1;
  pauses_.on_joined("generate", 1);
  answer(resumed, StatusCode::kInternal);
  ASSERT_FALSE(pauses_.state().paused);  // those that replied run
  EXPECT_EQ(sent(resumed), std::vector<AdminAction>{AdminAction::kContinue});
}

// The late reply is to a command of before.
TEST_F(PausesJoinTest, ALateFailureOfAResumeEndsNoLaterPause) {
  pause();
  answer(0);
  resume();
  pause();
  answer(2);
  answer(1, StatusCode::kDeadline);
  EXPECT_TRUE(pauses_.state().paused);
  EXPECT_EQ(asked_.size(), 3u);
}

TEST_F(PausesJoinTest, OfTwoCommandsTheLastRepliesDecide) {
  pause();
  pauses_.on_joined("generate", 1);
  pauses_.on_joined("generate", 1);  // once more
  resume();
  const std::size_t resumed = asked_.size() - 1;
  answer(0);
  EXPECT_TRUE(sent(resumed).empty());
  answer(resumed);
  ASSERT_FALSE(pauses_.state().paused);
  EXPECT_EQ(sent(resumed), std::vector<AdminAction>{AdminAction::kContinue});
}

}  // namespace
}  // namespace millrace
