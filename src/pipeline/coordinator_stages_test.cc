// The coordinator and its stages: which are ready, what a lost one costs, replicas, admin commands.
#include <gtest/gtest.h>

#include <set>

#include "pipeline/testing/coordinator_harness.h"
#include "wire/codec.h"
#include "wire/limits.h"

namespace millrace::testing {
namespace {

using CoordinatorStages = CoordinatorHarness;

TEST_F(CoordinatorStages, ItIsReadyWhenEveryStageHasAReplicaThatIs) {
  make();
  EXPECT_EQ(core->health().reason, "prepare: starting");
  Client early;
  submit(early);
  EXPECT_EQ(early.end.status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(early.end.status.message(), "the pipeline is not ready: prepare: starting");
  for (const std::string stage : {"prepare", "decode", "talk", "tone"}) join(stage);
  core->handle(registration("think", 1, 1), now);
  EXPECT_EQ(core->health().reason, "think-0: starting");
  wire::StageStatus loading{.stage = "think", .incarnation = 1, .message = "weights", .progress = 0.5, .replica = 1};
  core->handle(loading, now);
  EXPECT_FALSE(core->health().ready);
  beat("think", 1);
  const Health health = core->health();
  EXPECT_TRUE(health.ready);
  EXPECT_EQ(health.reason, "think-0: starting");  // ready, but not with all
  ASSERT_EQ(health.stages.size(), 6u);
  EXPECT_EQ(health.stages[1].stage, "think");
  EXPECT_EQ(health.stages[1].replica, 0u);
  EXPECT_EQ(health.stages[1].state, wire::StageState::kLoading);
  EXPECT_EQ(health.stages[2].state, wire::StageState::kReady);
}

TEST_F(CoordinatorStages, OfALostStageTheCountersStayAndTheGaugesGo) {
  make();
  all_join();
  wire::StageStatus status{.stage = "think", .incarnation = 1, .state = wire::StageState::kReady, .running = 4};
  status.waiting = 2, status.pages_total = 9, status.pages_free = 3;
  status.metrics = {
      {"kv_transfers_open", 5}, {"kv_transfers_total{end=decode,reason=ok}", 7}, {"queue{kind=x_total}", 1}};
  core->handle(status, now);
  EXPECT_EQ(core->health().stages[1].running, 4);
  EXPECT_EQ(core->health().stages[1].metrics.size(), 3u);
  core->down("think", 0, 1, "killed", now);
  const wire::StageStatus lost = core->health().stages[1];
  EXPECT_EQ(lost.state, wire::StageState::kFailed);
  EXPECT_EQ(lost.running + lost.waiting + lost.pages_total + lost.pages_free, 0);
  ASSERT_EQ(lost.metrics.size(), 1u);
  EXPECT_EQ(lost.metrics[0].name, "kv_transfers_total{end=decode,reason=ok}");
}

// It reports that it is ready; only the coordinator knows that its weights are not those that serve.
TEST_F(CoordinatorStages, AStageWithOtherWeightsIsNotShownAsReady) {
  make();
  all_join();
  const auto shown = [this](uint64_t version, uint64_t checksum) {
    core->handle(wire::StageStatus{.stage = "think",
                                   .incarnation = 1,
                                   .state = wire::StageState::kReady,
                                   .weight_version = version,
                                   .weights_checksum = checksum},
                 now);
    return core->health().stages[1];
  };
  core->require_weights({"think"}, {.version = 2, .checksum = 7});
  EXPECT_EQ(shown(2, 7).state, wire::StageState::kReady);
  EXPECT_EQ(shown(2, 7).message, "");
  EXPECT_EQ(shown(1, 7).state, wire::StageState::kLoading);  // it will be updated
  EXPECT_NE(shown(1, 7).message.find("stale, has weight version 1; wanted 2"), std::string::npos);
  EXPECT_EQ(shown(2, 8).state, wire::StageState::kFailed);  // nothing but other files would help
  EXPECT_NE(shown(2, 8).message.find("have the checksum"), std::string::npos);
}

// As when the process has no file descriptor left: the stage registers until it is welcome, and each time is tried
// anew.
TEST_F(CoordinatorStages, AStageThatCannotBeReachedIsTriedAgain) {
  make();
  all_join();
  core->down("tone", 0, 1, "killed", now);
  unreachable = "tone/0";
  join("tone", 0, 2);
  EXPECT_FALSE(core->health().ready);
  EXPECT_NE(core->health().reason.find("tone: no socket to it could be opened"), std::string::npos);
  join("tone", 0, 2);
  EXPECT_FALSE(core->health().ready);
  unreachable.clear();
  const std::size_t before = box("tone").messages.size();
  join("tone", 0, 2);
  ASSERT_GT(box("tone").messages.size(), before);
  const auto* const welcome = std::get_if<wire::Welcome>(&box("tone").messages[before]);
  ASSERT_NE(welcome, nullptr);
  EXPECT_FALSE(welcome->refused);
  EXPECT_TRUE(core->health().ready);
  Client client;
  submit(client);
  EXPECT_EQ(client.ends, 0);
}

// A process that was refused is the reason why its slot is empty.
TEST_F(CoordinatorStages, ARefusalIsShownWhileItsSlotIsEmpty) {
  make();
  all_join();
  core->down("tone", 0, 1, "killed", now);
  wire::Register other = registration("tone", 0, 2);
  other.spec_hash ^= 1;
  core->handle(other, now);
  EXPECT_NE(core->health().reason.find("refused: stage 'tone' was started with pipeline"), std::string::npos);
  join("tone", 0, 3);
  EXPECT_TRUE(core->health().ready);
}

TEST_F(CoordinatorStages, RequestsArePlacedOnReplicasThatServe) {
  spec.max_requests = 400;
  make();
  all_join();
  std::set<uint32_t> seen;
  for (int i = 0; i < 64; ++i) {
    Client client;
    seen.insert(thinker_of(submit(client)));
    core->fail_all(Status(StatusCode::kInternal, "x"), now);
  }
  EXPECT_EQ(seen.size(), 2u);
  core->down("think", 1, 1, "killed", now);
  for (int i = 0; i < 64; ++i) {
    Client client;
    EXPECT_EQ(thinker_of(submit(client)), 0u);
    EXPECT_EQ(client.ends, 0);
    core->fail_all(Status(StatusCode::kInternal, "x"), now);
  }
}

TEST_F(CoordinatorStages, ALostReplicaEndsTheRequestsThatItHasAlone) {
  spec.max_requests = 64;
  make();
  all_join();
  std::vector<Client> clients(40);
  std::vector<uint32_t> thinkers;
  for (Client& client : clients) thinkers.push_back(thinker_of(submit(client)));
  pass(2500, "think-1");
  int lost_requests = 0;
  for (std::size_t i = 0; i < clients.size(); ++i) {
    const bool its = thinkers[i] == 1;
    EXPECT_EQ(clients[i].ends, its ? 1 : 0);
    if (!its) continue;
    ++lost_requests;
    EXPECT_EQ(clients[i].end.status.code(), StatusCode::kUnavailable);
    EXPECT_EQ(clients[i].end.status.message(), "stage 'think': think-1 stopped: silent for 2000 ms");
  }
  EXPECT_EQ(lost_requests, 20);  // each has as many as the other
  ASSERT_EQ(lost_replicas.size(), 1u);
  EXPECT_EQ(lost_replicas[0].first, "think-1");
  EXPECT_TRUE(core->health().ready);
  // The dead one need not acknowledge.
  EXPECT_EQ(core->books().awaited_acks, 4u * static_cast<unsigned>(lost_requests));
  acknowledge_aborts();
  EXPECT_EQ(core->books().open_aborts, 0u);
}

TEST_F(CoordinatorStages, AStageThatIsNotNeededAnyMoreMayDie) {
  Client text, both, past;
  const ReqId first = submit(text, {.terminals = std::vector<std::string>{"decode"}});
  const ReqId second = submit(both);
  const ReqId third = submit(past);
  complete(third, "tone", in_tree(Value("beep")));
  core->down("talk", 0, 1, "killed", now);
  EXPECT_EQ(text.ends, 0);  // never needs it
  EXPECT_EQ(both.ends, 1);  // its tone comes through there
  EXPECT_EQ(past.ends, 0);  // has its tone already
  for (const ReqId id : {first, third}) complete(id, "decode", in_tree(Value("text")));
  EXPECT_TRUE(text.end.status.ok());
  EXPECT_TRUE(past.end.status.ok());
  EXPECT_TRUE(same_bits(past.end.result, Value(ValueMap{{"decode", "text"}, {"tone", "beep"}})));
  complete(second, "decode", in_tree(Value("text")));
  EXPECT_EQ(both.ends, 1);
}

// What has passed a stage does not need it any more: `think` reports that it has everything of `prepare`, and so on.
TEST_F(CoordinatorStages, AStageThatHasHandedAllOnMayDie) {
  Client client;
  const ReqId id = submit(client);
  const auto inputs_complete = [&](const std::string& stage, std::vector<std::string> sources) {
    chunk_of(id, from(stage, stage == "think" ? thinker_of(id) : 0), wire::InputsComplete{std::move(sources)});
  };
  inputs_complete("think", {"prepare"});
  core->down("prepare", 0, 1, "killed", now);
  EXPECT_EQ(client.ends, 0);
  inputs_complete("talk", {"think"});
  chunk_of(id, from("think", 1 - thinker_of(id)), wire::InputsComplete{{"prepare"}});  // is not in it
  EXPECT_EQ(core->books().ignored, 1u);
  inputs_complete("decode", {"unknown"});
  core->down("think", thinker_of(id), 1, "killed", now);
  EXPECT_EQ(client.ends, 1);  // decode still waits for it
  inputs_complete("decode", {"think"});
  EXPECT_EQ(core->books().late, 1u);
  acknowledge_aborts();
  expect_quiet();
}

// "prepare" chooses between two helpers, of which "left" has died.
TEST_F(CoordinatorStages, ARequestBeginsWithoutAStageThatItMayNotNeed) {
  spec.stages = {{.name = "prepare", .worker = "w", .next = {"left", "right"}, .route = "r"},
                 {.name = "left", .worker = "w", .next = {"decode", "tone"}},
                 {.name = "right", .worker = "w", .next = {"decode"}},
                 {.name = "decode", .worker = "w", .terminal = true},
                 {.name = "tone", .worker = "w", .terminal = true}};
  make();
  for (const char* stage : {"prepare", "right", "decode", "tone"}) join(stage);
  Client early, text, sound, stale, fresh;
  submit(early, {.terminals = std::vector<std::string>{"decode"}});
  EXPECT_EQ(early.end.status.message(), "the pipeline is not ready: left: starting");  // all are waited for at first
  join("left");
  knows_epoch = core->members().epoch();  // the others get late what comes now
  core->down("left", 0, 1, "killed", now);
  submit(stale, {.terminals = std::vector<std::string>{"decode"}});
  core->tick(now += kCoordinatorTickMs);
  EXPECT_TRUE(box("prepare").take<wire::Submit>().empty());  // it would send to the dead
  EXPECT_EQ(core->running(), 0u);
  knows_epoch.reset();
  for (const char* stage : {"prepare", "right", "decode", "tone"}) beat(stage);
  core->tick(now += kCoordinatorTickMs);
  EXPECT_EQ(core->running(), 1u);
  submit(text, {.terminals = std::vector<std::string>{"decode"}});
  submit(sound, {.terminals = std::vector<std::string>{"tone"}});
  EXPECT_EQ(text.ends, 0);
  EXPECT_EQ(sound.end.status.message(), "the pipeline is not ready: left: killed");  // every way leads through it
  EXPECT_FALSE(core->health().ready);
  // It comes back: no other one may be sent to it as if it were the dead.
  knows_epoch = 0;
  join("left", 0, 2);
  beat("prepare");
  submit(fresh, {.terminals = std::vector<std::string>{"tone"}});
  EXPECT_EQ(core->books().pending, 1u);
  knows_epoch.reset();
  beat("prepare");
  core->tick(now += kCoordinatorTickMs);
  EXPECT_EQ(core->books().pending, 0u);
  core->down("left", 0, 2, "killed", now);
  EXPECT_EQ(fresh.ends, 1);
  EXPECT_EQ(text.ends + stale.ends, 2);  // they may be there, for all that the coordinator knows
}

TEST_F(CoordinatorStages, ATerminalIsNeededUntilItsBytesAreHere) {
  Client client;
  const ReqId id = submit(client, {.terminals = std::vector<std::string>{"decode"}});
  complete(id, "decode", through_relay("result"));
  core->down("decode", 0, 1, "killed", now);
  EXPECT_EQ(client.ends, 1);
  payloads.finish("result", Value("text"));
  core->tick(now);
  acknowledge_aborts();
  EXPECT_EQ(client.ends, 1);
}

TEST_F(CoordinatorStages, ZombiesAreIgnoredAndCounted) {
  Client client;
  core->down("decode", 0, 1, "silent", now);
  join("decode", 0, 2);
  for (const uint32_t replica : {0u, 1u}) beat("think", replica);  // which know of it
  const ReqId id = submit(client, {.terminals = std::vector<std::string>{"decode"}});
  complete(id, "decode", in_tree(Value("stale")));  // of incarnation 1
  chunk(id, "decode", 0, in_tree(Value("stale")));
  fail(id, "decode", StatusCode::kInternal, "stale");
  wire::Origin other_session = from("decode", 0, 2);
  other_session.session = kSession - 1;
  chunk_of(id, other_session, wire::StageResult{in_tree(Value("stale"))});
  EXPECT_EQ(client.ends, 0);
  EXPECT_TRUE(client.chunks.empty());
  EXPECT_EQ(core->books().fenced, 4u);
  chunk_of(id, from("decode", 0, 2), wire::StageResult{in_tree(Value("fresh"))});
  EXPECT_TRUE(same_bits(client.end.result, Value("fresh")));
}

TEST_F(CoordinatorStages, TheRouteTravelsWithTheRequest) {
  make();
  all_join();
  Client both, text;
  const ReqId first = submit(both);
  const ReqId second = submit(text, {.terminals = std::vector<std::string>{"decode"}});
  const auto submits = box("prepare").take<wire::Submit>();
  ASSERT_EQ(submits.size(), 2u);
  EXPECT_EQ(submits[0].route, core->route_of(first));
  EXPECT_EQ(submits[1].route, core->route_of(second));
  const auto stages = [](const wire::Submit& submit) {
    std::set<std::string> out;
    for (const wire::RouteHop& hop : submit.route) {
      EXPECT_EQ(hop.incarnation, 1u);
      out.insert(hop.stage);
    }
    return out;
  };
  EXPECT_EQ(stages(submits[0]), (std::set<std::string>{"prepare", "think", "decode", "talk", "tone"}));
  EXPECT_EQ(stages(submits[1]), (std::set<std::string>{"prepare", "think", "decode"}));
  EXPECT_NE(replica_of(first, "think"), replica_of(second, "think"));  // the one with fewer requests
}

TEST_F(CoordinatorStages, AResultOfAReplicaThatTheRequestDoesNotHaveIsIgnored) {
  spec.stages[2].replicas = 2;
  make();
  all_join();
  Client client;
  const ReqId id = submit(client, {.terminals = std::vector<std::string>{"decode"}});
  const uint32_t right = replica_of(id, "decode");
  for (const uint32_t replica : {1 - right, right}) {
    EXPECT_EQ(client.ends, 0);
    chunk_of(id, from("decode", replica), wire::StageResult{in_tree(Value(static_cast<int>(replica)))});
  }
  EXPECT_TRUE(same_bits(client.end.result, Value(static_cast<int>(right))));
  EXPECT_EQ(core->books().ignored, 1u);
}

TEST_F(CoordinatorStages, TheNewcomerGetsOpenAborts) {
  Client client;
  const ReqId id = submit(client);
  core->cancel(id, now);
  core->down("talk", 0, 1, "killed", now);
  EXPECT_EQ(core->books().awaited_acks, 4u);
  (void)box("talk").take<wire::AbortRequest>();
  join("talk", 0, 2);
  EXPECT_EQ(core->books().awaited_acks, 5u);
  core->tick(now += 500);
  EXPECT_EQ(box("talk").take<wire::AbortRequest>().size(), 1u);
  core->handle(wire::AbortAck{id, from("talk", 0, 1)}, now);  // of the dead one: does not count
  EXPECT_EQ(core->books().awaited_acks, 5u);
  core->handle(wire::AbortAck{id, from("talk", 0, 2)}, now);
  acknowledge_aborts();
  expect_quiet();
}

TEST_F(CoordinatorStages, AnAbortThatIsNeverAcknowledgedIsGivenUp) {
  Client client;
  core->cancel(submit(client), now);
  for (const std::string stage : {"prepare", "decode", "tone"}) box(stage).messages.clear();
  pass(int64_t{kMaxAbortTries} * kAbortRetryMs + 1000);
  EXPECT_EQ(core->books().aborts_given_up, 1u);
  expect_quiet();
}

TEST_F(CoordinatorStages, ARefusalHasItsReason) {
  core->handle(registration("unknown", 0, 1), now);
  const auto answers = box("unknown").take<wire::Welcome>();
  ASSERT_EQ(answers.size(), 1u);
  ASSERT_TRUE(answers[0].refused);
  EXPECT_EQ(answers[0].refused->code, StatusCode::kNotFound);
}

// ---- admin commands

TEST_F(CoordinatorStages, AnotherWireVersionIsRefusedInThatVersion) {
  wire::Register message = registration("think", 0, 9);
  message.reply_to = "its-endpoint";
  message.wire_version = wire::kWireVersion + 1;
  core->handle(message, now);
  open("its-endpoint");
  const auto sent = dynamic_cast<StageBox&>(*boxes["its-endpoint"]).take<wire::Welcome>();
  ASSERT_EQ(sent.size(), 1u);
  ASSERT_TRUE(sent[0].refused);
  EXPECT_EQ(sent[0].refused->code, StatusCode::kConflict);
  EXPECT_EQ(
      sent[0].refused->message,
      fmt::format("stage 'think' speaks wire version {}; the coordinator speaks {}: start both with the same build",
                  wire::kWireVersion + 1, wire::kWireVersion));
  EXPECT_EQ(sent[0].incarnation, 9u);
  // Its frame has the joiner's version, and is our own but for that.
  const std::string frame = *wire::encode(sent[0]);
  EXPECT_EQ(frame[2], static_cast<char>(wire::kWireVersion + 1));
  EXPECT_FALSE(wire::decode(frame).ok());
  std::string ours = frame;
  ours[2] = static_cast<char>(wire::kWireVersion);
  EXPECT_TRUE(wire::decode(ours).ok());
  EXPECT_TRUE(core->health().ready);  // a member stays one
}

TEST_F(CoordinatorStages, AFlushedReplicaIsNotPreferredForWhatItHad) {
  spec.stages[1].replica_policy = ReplicaPolicy::kPrefixAware;
  make();
  all_join();
  Client client;
  const auto replica_for_prompt = [&] {
    client.ends = 0;
    const ReqId id = submit(client, {.terminals = std::vector<std::string>{"decode"}, .inputs_follow = true});
    core->set_prompt(id, {.prompt = {1}}, {.prefix = {11, 12, 13}, .tokens = 48}, now);
    const uint32_t replica = thinker_of(id);
    complete(id, "decode", in_tree(Value()));
    return replica;
  };
  const uint32_t first = replica_for_prompt();
  EXPECT_EQ(replica_for_prompt(), first);
  EXPECT_EQ(replica_for_prompt(), first);
  std::size_t replies = 0;
  core->admin(
      {.action = wire::AdminAction::kFlushCache}, [&](auto all) { replies = all.size(); }, now);
  for (const ReplicaView& one : core->members().replicas()) {
    for (const auto& request : box(one.stage, one.replica).take<wire::AdminRequest>()) {
      core->handle(wire::AdminReply{.id = request.id, .stage = one.stage}, now);
    }
  }
  EXPECT_EQ(replies, core->members().replicas().size());
  EXPECT_NE(replica_for_prompt(), first);  // whose turn it is
}

}  // namespace
}  // namespace millrace::testing
