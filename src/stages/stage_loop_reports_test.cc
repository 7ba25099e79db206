// What a stage reports of requests when the coordinator asks (wire/probe_messages.h), and of a worker that stands.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "stages/testing/one_stage.h"

namespace millrace::testing {
namespace {

using State = wire::StageRequestState;
using Names = std::vector<std::string>;

class StageLoopReports : public OneStage {
 protected:
  std::vector<wire::StageRequest> ask(const std::vector<uint64_t>& ids) {
    wire::RequestProbe probe{.from = from_coordinator(), .round = ++round_};
    for (const uint64_t id : ids) probe.ids.push_back(ReqId{id});
    deliver(probe);
    const auto reports = coordinator_->all<wire::RequestReport>();
    EXPECT_FALSE(reports.empty());
    if (reports.empty()) return {};
    EXPECT_EQ(reports.back().round, round_);
    EXPECT_EQ(reports.back().from, (wire::Origin{kSession, "mid", 0, loop_->incarnation()}));
    return reports.back().requests;
  }
  wire::StageRequest ask(uint64_t id) {
    const auto requests = ask(std::vector<uint64_t>{id});
    EXPECT_EQ(requests.size(), 1u);
    return requests.empty() ? wire::StageRequest{} : requests[0];
  }
  void wait_for_two() {
    spec_.wait_for = {"a", "c"};
    spec_.merge = "m";
    library_.merges["m"] = [](std::map<std::string, Value>) -> Result<Value> { return Value(1); };
    make();
  }
  uint64_t round_ = 100;
};

TEST_F(StageLoopReports, UnknownRequestsAreNotListed) {
  make();
  EXPECT_TRUE(ask({7, 8}).empty());
}

TEST_F(StageLoopReports, ARequestThatStartedIsWorkedOn) {
  make();
  receive(payload(1, "a", number(1)));
  EXPECT_EQ(ask(1), (wire::StageRequest{ReqId{1}, State::kWorking, {"a"}, {}}));
}

TEST_F(StageLoopReports, OneThatWaitsForPayloadsWaits) {
  wait_for_two();
  receive(payload(1, "a", number(1)));
  EXPECT_EQ(ask(1), (wire::StageRequest{ReqId{1}, State::kWaiting, {"a"}, {}}));
  receive(payload(1, "c", number(2)));
  EXPECT_EQ(ask(1), (wire::StageRequest{ReqId{1}, State::kWorking, {"a", "c"}, {}}));
}

// Its bytes are on their way: that ends by itself.
TEST_F(StageLoopReports, AFetchIsWork) {
  wait_for_two();
  hub_.holds_gets = true;
  receive(lying_payload(1, "a", put_payload(with_tensor(1), "a")));
  EXPECT_EQ(ask(1).state, State::kWorking);
}

TEST_F(StageLoopReports, WhatHasLeftIsNamed) {
  spec_.stream_to = {"x"};
  make();
  receive(payload(1, "a", number(1)));
  out("x")->answer = Status(StatusCode::kResourceExhausted, "full");
  work(1, [](Emit& emit) { emit.chunk(ReqId{1}, number(2)); });
  EXPECT_EQ(ask(1).targets, Names{});
  out("x")->answer = ok_status();
  run(2 * loop::kRetryMs);
  EXPECT_EQ(ask(1).targets, Names{"x"});
}

TEST_F(StageLoopReports, EndsAreNamed) {
  spec_.next = {"x"};
  result(number(3));
  make();
  receive(payload(1, "a", number(1)));
  run(2 * loop::kRetryMs);
  EXPECT_EQ(ask(1), (wire::StageRequest{ReqId{1}, State::kFinished, {}, {"x"}}));
  deliver(wire::AbortRequest{ReqId{2}});
  EXPECT_EQ(ask(2), (wire::StageRequest{ReqId{2}, State::kFailed, {}, {}}));
}

TEST_F(StageLoopReports, AnotherSessionsCoordinatorGetsNoAnswer) {
  make();
  deliver(wire::RequestProbe{.from = {.session = kSession + 1}, .round = 1, .ids = {ReqId{1}}});
  EXPECT_TRUE(coordinator_->all<wire::RequestReport>().empty());
}

struct StandingWorker : ScriptedWorker {
  using ScriptedWorker::ScriptedWorker;
  std::optional<Pulse> pulse() const override { return Pulse{.busy = true, .progress = 1}; }
};

// The process was stopped and continued: the worker could not move.
TEST_F(StageLoopReports, APauseOfTheProcessIsNoStall) {
  config_.spec = spec_;
  StageLoopEnv env;
  env.coordinator = coordinator_;
  env.connect = [](const wire::Peer&) -> Result<std::shared_ptr<Outbox>> { return internal_error("no"); };
  env.worker = std::make_unique<loop::InlineWorkerHost>(std::make_unique<StandingWorker>(log_));
  loop_ = StageLoop::make(config_, library_, std::move(env)).value();
  const auto state = [this] { return coordinator_->all<wire::StageStatus>().back().state; };
  welcome();
  run(1000);
  ASSERT_EQ(state(), wire::StageState::kReady);
  now_ += 60'000;
  run(0);
  EXPECT_EQ(state(), wire::StageState::kReady);
  run(1000);
  EXPECT_EQ(state(), wire::StageState::kStalled) << "what it stood before the pause counts";
}

}  // namespace
}  // namespace millrace::testing
