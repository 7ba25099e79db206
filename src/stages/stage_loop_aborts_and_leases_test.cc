// Ends: aborts at every step, deadlines, leases, shutdown.
#include "stages/testing/one_stage.h"

namespace millrace::testing {
namespace {

class StageLoopEnds : public OneStage {
 protected:
  void abort(uint64_t id) { deliver(wire::AbortRequest{.id = {id}}); }
  Incoming put_message(uint64_t id, std::function<void(const Status&)> done = {}) {
    return lying_payload(id, "a", put_payload(with_tensor(1), "a", std::move(done)));
  }
};

TEST_F(StageLoopEnds, AnAbortBeforeThePayloadLeavesATombstone) {
  make();
  abort(1);
  EXPECT_EQ(acks(1), 1u);
  bool over = false;
  receive(put_message(1, [&](const Status& status) { over = status.ok(); }));
  run(1);
  EXPECT_TRUE(over);  // its sender got its credit back
  receive(chunk(1, "a", 0));
  EXPECT_TRUE(log_->calls.empty());
  EXPECT_TRUE(ends().empty());
  expect_clean();
  abort(1);
  EXPECT_EQ(acks(1), 2u);  // sent again, acknowledged again
}

TEST_F(StageLoopEnds, TombstonesExpire) {
  make();
  abort(1);
  EXPECT_EQ(loop_->books().tombstones, 1u);
  run(loop::kTombstoneMs + 10);
  EXPECT_EQ(loop_->books().tombstones, 0u);
  for (uint64_t id = 1; id <= loop::kMaxTombstones + 10; ++id) loop_->handle(wire::AbortRequest{.id = {id}}, now_);
  EXPECT_EQ(loop_->books().tombstones, loop::kMaxTombstones);
  receive(payload(loop::kMaxTombstones + 10, "a", number(1)));
  EXPECT_TRUE(log_->calls.empty());  // the newest are kept
  receive(payload(1, "a", number(1)));
  EXPECT_TRUE(called("start 1"));
}

TEST_F(StageLoopEnds, AnAbortWhileThePayloadIsFetchedCancelsTheGet) {
  hub_.holds_gets = true;
  make();
  receive(put_message(1));
  EXPECT_EQ(loop_->books().gets, 1u);
  abort(1);
  EXPECT_EQ(acks(1), 1u);
  EXPECT_TRUE(hub_.gets.empty());
  EXPECT_TRUE(log_->calls.empty());
  expect_clean();
}

TEST_F(StageLoopEnds, AnAbortDuringFanIn) {
  spec_.wait_for = {"a", "b"};
  spec_.merge = "m";
  library_.merges["m"] = [](std::map<std::string, Value>) -> Result<Value> { return Value(1); };
  make();
  receive(put_message(1));
  run(1);
  EXPECT_EQ(loop_->books().requests, 1u);
  EXPECT_TRUE(hub_.puts.empty());  // what waits holds no credit of its sender
  abort(1);
  receive(payload(1, "b", number(1)));
  EXPECT_TRUE(log_->calls.empty());
  EXPECT_EQ(acks(1), 1u);
  expect_clean();
}

TEST_F(StageLoopEnds, AnAbortDuringTheWorkDropsIt) {
  make();
  receive(payload(1, "a", number(1)));
  abort(1);
  EXPECT_TRUE(called("drop 1"));
  EXPECT_EQ(acks(1), 1u);
  log_->next_tick.push_back([](Emit& emit) { emit.result({1}, number(1)); });  // too late
  run(1);
  EXPECT_TRUE(out("x")->chunks().empty());
  EXPECT_EQ(loop_->counters().aborted, 1u);
  expect_clean();
}

TEST_F(StageLoopEnds, AnAbortDuringTheSendsCancelsThem) {
  spec_.next = {"x"};
  log_->on_start = [](ReqId id, const Value&, Emit& emit) { emit.result(id, with_tensor(1)); };
  make();
  receive(payload(1, "a", number(1)));
  EXPECT_EQ(loop_->books().puts, 1u);
  out("x")->answer = error(StatusCode::kResourceExhausted, "full");
  receive(payload(2, "a", number(1)));
  abort(1);
  abort(2);
  EXPECT_EQ(acks(1) + acks(2), 2u);
  EXPECT_TRUE(hub_.puts.empty());
  expect_clean();
}

TEST_F(StageLoopEnds, AnAbortOfAStreamOnlyRequestDropsIt) {
  spec_.can_accept_stream_before_payload = true;
  make();
  receive(chunk(1, "a", 0));
  abort(1);
  EXPECT_EQ(log_->calls, (std::vector<std::string>{"chunk 1 a 0", "drop 1"}));
  EXPECT_EQ(acks(1), 1u);
  expect_clean();
}

TEST_F(StageLoopEnds, ARequestThatOutlivesItsTimeFails) {
  make();
  timeout_ms_ = 300;
  receive(payload(1, "a", number(1)));
  hub_.holds_gets = true;
  receive(put_message(2));
  run(310);
  EXPECT_TRUE(ends().empty());  // the coordinator, which has the limit, reports it
  run(loop::kDeadlineGraceMs);
  EXPECT_NE(failure(1, StatusCode::kDeadline).find("it was not ended"), std::string::npos);
  EXPECT_TRUE(called("drop 1"));
  expect_clean();
}

TEST_F(StageLoopEnds, OneThatLeavesReportsIt) {
  make();
  receive(payload(1, "a", number(1)));
  loop_->leave("it was stopped");
  EXPECT_TRUE(loop_->ended());
  EXPECT_TRUE(loop_->end_status().ok());
  const wire::StageStatus last = coordinator_->all<wire::StageStatus>().back();
  EXPECT_EQ(last.state, wire::StageState::kFailed);
  EXPECT_EQ(last.message, "it was stopped");
}

TEST_F(StageLoopEnds, WhatIsLeftOfTheTimeTravelsOn) {
  make();
  timeout_ms_ = 5000;
  receive(payload(1, "a", number(1)));
  run(1200);
  log_->next_tick.push_back([](Emit& emit) { emit.result({1}, number(1)); });
  run(10);
  const auto sent = out("x")->chunks();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_LE(sent[0].opening->timeout_ms, 3800);
  EXPECT_GE(sent[0].opening->timeout_ms, 3700);
}

TEST_F(StageLoopEnds, AFailureIsSentOnceAndThenLateMessagesAreIgnored) {
  spec_.stream_to = {"x"};
  make();
  receive(payload(1, "a", number(1)));
  log_->next_tick.push_back([](Emit& emit) { emit.chunk({1}, number(1)); });
  run(1);
  log_->next_tick.push_back([](Emit& emit) {
    emit.fail({1}, error(StatusCode::kTooLarge, "no"));
    emit.fail({1}, error(StatusCode::kInternal, "again"));
  });
  run(1);
  failure(1, StatusCode::kTooLarge);
  ASSERT_EQ(out("x")->chunks().size(), 2u);
  EXPECT_TRUE(std::holds_alternative<wire::Failure>(out("x")->chunks()[1].body));
  receive(chunk(1, "b", 0));
  abort(1);
  failure(1, StatusCode::kTooLarge);
  EXPECT_EQ(acks(1), 1u);
  expect_clean();
}

TEST_F(StageLoopEnds, AStreamThatIsWantedNoMoreIsTakenAndAcknowledged) {
  log_->on_start = [](ReqId id, const Value&, Emit& emit) { emit.result(id, number(1)); };
  make();
  receive(payload(1, "a", number(1)));
  receive(put_chunk(1, "b", 0, "b"));
  run(1);
  EXPECT_TRUE(hub_.puts.empty());
  ASSERT_EQ(out("b")->acks().size(), 1u);
  EXPECT_EQ(out("b")->acks()[0].count, 1u);
  expect_clean();
}

TEST_F(StageLoopEnds, ItRegistersUntilItIsWelcome) {
  make(false);
  EXPECT_FALSE(loop_->member());
  run(3 * loop::kRegisterMs + 10);
  const auto registered = coordinator_->all<wire::Register>();
  EXPECT_GE(registered.size(), 3u);
  EXPECT_EQ(registered[0].self.stage, "mid");
  ASSERT_EQ(registered[0].self.relays.size(), 1u);
  EXPECT_EQ(registered[0].self.relays[0].address.bytes, "mid");
  deliver(wire::Welcome{.from = from_coordinator(), .stage = "mid", .incarnation = 77});
  EXPECT_FALSE(loop_->member());  // for another incarnation
  wire::Welcome busy{.from = from_coordinator(), .stage = "mid", .incarnation = 1};
  busy.refused = wire::Failure{StatusCode::kUnavailable, "taken"};
  deliver(busy);
  EXPECT_FALSE(loop_->ended());
  welcome();
  EXPECT_TRUE(loop_->member());
  EXPECT_EQ(coordinator_->all<wire::StageStatus>().size(), 1u);
  run(1000);
  EXPECT_GE(coordinator_->all<wire::StageStatus>().size(), 4u);
  EXPECT_EQ(coordinator_->all<wire::StageStatus>()[0].state, wire::StageState::kReady);
}

TEST_F(StageLoopEnds, AHeartbeatHasTheEpochOfItsTable) {
  make();
  const auto epoch = [this] { return coordinator_->all<wire::StageStatus>().back().peers_epoch; };
  EXPECT_EQ(epoch(), epoch_);
  const std::size_t beats = coordinator_->all<wire::StageStatus>().size();
  peers();  // at once: the coordinator waits for it
  EXPECT_EQ(coordinator_->all<wire::StageStatus>().size(), beats + 1);
  EXPECT_EQ(epoch(), epoch_);
}

TEST_F(StageLoopEnds, OneThatIsRefusedForGoodEnds) {
  make(false);
  wire::Welcome no{.from = from_coordinator(), .stage = "mid", .incarnation = 1};
  no.refused = wire::Failure{StatusCode::kConflict, "another pipeline"};
  deliver(no);
  EXPECT_TRUE(loop_->ended());
  EXPECT_EQ(loop_->end_status().code(), StatusCode::kConflict);
}

// SIGSTOP and SIGCONT, a suspended machine, or one without a free core. The coordinator may have stood still as well:
// it is asked, and its answer counts.
TEST_F(StageLoopEnds, OneThatStoodStillAsksWhetherItWasMissed) {
  make();
  receive(payload(1, "a", number(1)));
  hub_.holds_gets = true;
  receive(put_message(2));
  for (int64_t gap_ms : {5'000, 20'000}) {  // over the lease, and over the time in which the coordinator may be silent
    const std::size_t beats = coordinator_->all<wire::StageStatus>().size();
    now_ += gap_ms;
    receive(chunk(1, "a", 0));
    EXPECT_TRUE(loop_->member());
    ASSERT_EQ(coordinator_->all<wire::StageStatus>().size(), beats + 1);  // at once
    EXPECT_EQ(coordinator_->all<wire::StageStatus>().back().incarnation, 1u);
    run(1000);
    EXPECT_TRUE(loop_->member());
  }
  EXPECT_EQ(loop_->books().requests, 2u);
  wire::Welcome no{.from = from_coordinator(), .stage = "mid", .incarnation = 1};
  no.refused = wire::Failure{StatusCode::kConflict, "it lost its lease"};
  deliver(no);
  EXPECT_FALSE(loop_->member());
  EXPECT_EQ(loop_->incarnation(), 2u);
  EXPECT_TRUE(called("drop 1"));
  EXPECT_EQ(loop_->books().requests, 0u);
  run(loop::kRegisterMs + 10);
  const auto again = coordinator_->all<wire::Register>();
  EXPECT_EQ(again.back().self.incarnation, 2u);
  welcome();
  EXPECT_TRUE(loop_->member());
  peers();
  receive(payload(3, "a", number(1)));
  EXPECT_TRUE(called("start 3"));
}

TEST_F(StageLoopEnds, AMemberThatIsRefusedRegistersAnew) {
  make();
  receive(payload(1, "a", number(1)));
  wire::Welcome no{.from = from_coordinator(), .stage = "mid", .incarnation = 1};
  no.refused = wire::Failure{StatusCode::kConflict, "it lost its lease"};
  deliver(no);
  EXPECT_FALSE(loop_->member());
  EXPECT_EQ(leases_lost_, 1);
  EXPECT_EQ(loop_->incarnation(), 2u);
  EXPECT_TRUE(called("drop 1"));
  EXPECT_TRUE(ends().empty());
  expect_clean();
}

// As a stage that has just started, which the next coordinator takes it for: it has no pause of before.
TEST_F(StageLoopEnds, TheWorkerLearnsOfALostLeaseBetweenTheCommandsOfTwo) {
  make();
  log_->admin = [this](const wire::AdminRequest& command, Emit&) {
    log_->calls.push_back(fmt::format("admin {}", command.id));
  };
  receive(payload(1, "a", number(1)));
  deliver(wire::AdminRequest{.id = 5, .action = wire::AdminAction::kPause});
  wire::Welcome no{.from = from_coordinator(), .stage = "mid", .incarnation = 1};
  no.refused = wire::Failure{StatusCode::kConflict, "it lost its lease"};
  deliver(no);
  welcome();
  deliver(wire::AdminRequest{.id = 6, .action = wire::AdminAction::kPause});
  EXPECT_EQ(log_->calls, (std::vector<std::string>{"start 1", "admin 5", "drop 1", "lease lost", "admin 6"}));
}

TEST_F(StageLoopEnds, ASilentCoordinatorIsGone) {
  keep_lease_ = false;
  make();
  run(2000 * loop::kCoordinatorSilentLeases - 100);
  EXPECT_TRUE(loop_->member());
  run(300);
  EXPECT_FALSE(loop_->member());
}

TEST_F(StageLoopEnds, AnUnreachableCoordinatorIsGoneAfterTheLease) {
  keep_lease_ = false;
  make();
  receive(payload(1, "a", number(1)));
  coordinator_->answer = error(StatusCode::kUnavailable, "no coordinator");
  run(2500);
  EXPECT_FALSE(loop_->member());
  coordinator_->answer = ok_status();
  run(loop::kRegisterMs * 2);
  EXPECT_GE(coordinator_->all<wire::Register>().size(), 2u);
  expect_clean();
}

// Each answer makes another one, for ever.
struct Chatterbox : loop::WorkerHost {
  bool post(loop::WorkEvent&, int64_t) override { return true; }
  void collect(std::vector<loop::WorkOutput>& out) override { out.push_back({.kind = loop::WorkOutput::Kind::kChunk}); }
  int64_t run(int64_t) override { return loop::kNoWake; }
  int64_t standing_ms(int64_t) override { return 0; }
  void compensate_pause(int64_t, int64_t) override {}
  void describe(wire::StageStatus&) const override {}
  std::size_t waiting() const override { return 0; }
  uint64_t calls() const override { return 0; }
  void drain() override {}
  bool holds() const override { return false; }
  void close() override {}
  void push(loop::WorkOutput&&) override {}
};

TEST_F(StageLoopEnds, AWorkerThatNeverStopsTalkingDoesNotStopTheHeartbeat) {
  config_.spec = spec_;
  StageLoopEnv env;
  env.coordinator = coordinator_;
  env.connect = [](const wire::Peer&) -> Result<std::shared_ptr<Outbox>> { return internal_error("no"); };
  env.worker = std::make_unique<Chatterbox>();
  loop_ = StageLoop::make(config_, library_, std::move(env)).value();
  welcome();
  run(1000);
  EXPECT_TRUE(loop_->member());
  EXPECT_GE(coordinator_->all<wire::StageStatus>().size(), 4u);
}

struct SlowLoader : Chatterbox {
  explicit SlowLoader(const State& state) : state_(state) {}
  State state() const override { return state_; }
  void collect(std::vector<loop::WorkOutput>&) override {}
  const State& state_;
};

TEST_F(StageLoopEnds, AWorkerThatHasLoadedIsReportedAtOnce) {
  loop::WorkerHost::State state = loop::WorkerHost::State::kLoading;
  config_.spec = spec_;
  StageLoopEnv env;
  env.coordinator = coordinator_;
  env.connect = [](const wire::Peer&) -> Result<std::shared_ptr<Outbox>> { return internal_error("no"); };
  env.worker = std::make_unique<SlowLoader>(state);
  loop_ = StageLoop::make(config_, library_, std::move(env)).value();
  welcome();
  run(10);
  ASSERT_EQ(coordinator_->all<wire::StageStatus>().back().state, wire::StageState::kLoading);
  state = loop::WorkerHost::State::kReady;
  run(2);
  EXPECT_EQ(coordinator_->all<wire::StageStatus>().back().state, wire::StageState::kReady);
}

TEST_F(StageLoopEnds, NoticesWaitForTheCoordinator) {
  make();
  coordinator_->answer = error(StatusCode::kResourceExhausted, "full");
  abort(1);
  EXPECT_EQ(loop_->books().notices, 1u);
  coordinator_->answer = ok_status();
  run(loop::kRetryMs + 1);
  EXPECT_EQ(acks(1), 1u);
}

TEST_F(StageLoopEnds, AShutdownLetsWhatRunsFinish) {
  make();
  receive(payload(1, "a", number(1)));
  deliver(wire::Shutdown{.from = from_coordinator(), .grace_ms = 5000});
  EXPECT_FALSE(loop_->ended());
  EXPECT_EQ(coordinator_->all<wire::StageStatus>().back().state, wire::StageState::kDraining);
  receive(payload(2, "a", number(1)));
  failure(2, StatusCode::kUnavailable);
  log_->next_tick.push_back([](Emit& emit) { emit.result({1}, number(1)); });
  run(10);
  EXPECT_TRUE(loop_->ended());
  EXPECT_TRUE(loop_->end_status().ok());
  EXPECT_EQ(out("x")->chunks().size(), 1u);
}

TEST_F(StageLoopEnds, AShutdownsGraceIsBounded) {
  make();
  receive(payload(1, "a", number(1)));
  deliver(wire::Shutdown{.from = from_coordinator(), .grace_ms = 500});
  run(510);
  EXPECT_TRUE(loop_->ended());
  failure(1, StatusCode::kUnavailable);
}

TEST_F(StageLoopEnds, AStageThatLeavesFirstEndsWhatItHoldsForOthersAndWhatRuns) {
  make();
  const auto state = [&] { return coordinator_->all<wire::StageStatus>().back().state; };
  receive(payload(1, "a", number(1)));
  log_->holds = true;
  loop_->drain(now_, 60'000);
  EXPECT_TRUE(log_->drained);
  run(1000);
  EXPECT_EQ(state(), wire::StageState::kReady) << "others still need it";
  log_->holds = false;
  run(1000);
  EXPECT_EQ(state(), wire::StageState::kDraining);
  receive(payload(2, "a", number(1)));
  failure(2, StatusCode::kUnavailable);
  EXPECT_FALSE(loop_->ended());
  log_->next_tick.push_back([](Emit& emit) { emit.result({1}, number(1)); });
  run(1000);
  EXPECT_FALSE(loop_->ended()) << "the answer is on its way through other stages";
  run(2000);
  EXPECT_TRUE(loop_->ended());
  EXPECT_TRUE(loop_->end_status().ok());
  EXPECT_EQ(out("x")->chunks().size(), 1u);
  EXPECT_EQ(state(), wire::StageState::kFailed);
  EXPECT_EQ(coordinator_->all<wire::StageStatus>().back().message, "it was stopped");
}

TEST_F(StageLoopEnds, WhatAStageThatLeavesHoldsIsBounded) {
  make();
  log_->holds = true;
  loop_->drain(now_, 500);
  run(490);
  EXPECT_FALSE(loop_->ended());
  run(30);
  EXPECT_TRUE(loop_->ended());
}

TEST_F(StageLoopEnds, AdminCommandsAreReplied) {
  make();
  const auto run_command = [this](uint64_t id, wire::AdminAction action) {
    deliver(wire::AdminRequest{.id = id, .action = action});
    const auto replies = coordinator_->all<wire::AdminReply>();
    EXPECT_EQ(replies.back().id, id);
    EXPECT_EQ(replies.back().stage, "mid");
    return replies.back();
  };
  EXPECT_EQ(run_command(4, wire::AdminAction::kFlushCache).code, StatusCode::kUnsupported);
  log_->admin = [](const wire::AdminRequest& command, Emit& emit) { emit.reply(command.id, std::string("3 pages")); };
  const wire::AdminReply flushed = run_command(5, wire::AdminAction::kFlushCache);
  EXPECT_EQ(flushed.code, StatusCode::kOk);
  EXPECT_EQ(flushed.message, "3 pages");
  log_->admin = [](const wire::AdminRequest&, Emit&) { throw std::runtime_error("no cache left"); };
  const wire::AdminReply thrown = run_command(6, wire::AdminAction::kFlushCache);
  EXPECT_EQ(thrown.code, StatusCode::kInternal);
  EXPECT_NE(thrown.message.find("no cache left"), std::string::npos);
  log_->admin = nullptr;
  // The process's, not ours.
  EXPECT_EQ(run_command(7, wire::AdminAction::kStartProfile).code, StatusCode::kUnsupported);
  EXPECT_EQ(coordinator_->all<wire::AdminReply>().size(), 4u);
  // A worker may reply later.
  log_->admin = [this](const wire::AdminRequest& command, Emit&) {
    log_->next_tick.push_back([id = command.id](Emit& emit) { emit.reply(id, std::string("done")); });
  };
  deliver(wire::AdminRequest{.id = 8, .action = wire::AdminAction::kFlushCache, .timeout_ms = 100});
  run(10);
  EXPECT_EQ(coordinator_->all<wire::AdminReply>().back().id, 8u);
  EXPECT_EQ(coordinator_->all<wire::AdminReply>().back().message, "done");
  expect_clean();
}

TEST_F(StageLoopEnds, ARuleThatTheLibraryLacksIsAnError) {
  spec_.route = "nowhere";
  config_.spec = spec_;
  StageLoopEnv env;
  env.coordinator = coordinator_;
  env.connect = [](const wire::Peer&) -> Result<std::shared_ptr<Outbox>> { return internal_error("no"); };
  env.worker = std::make_unique<loop::InlineWorkerHost>(std::make_unique<ScriptedWorker>(log_));
  const auto loop = StageLoop::make(config_, library_, std::move(env));
  EXPECT_EQ(loop.status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace millrace::testing
