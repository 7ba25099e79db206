#include "pipeline/membership.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace millrace {
namespace {

using Kind = MembershipEvent::Kind;

PipelineSpec two_stages() {
  PipelineSpec spec{.name = "two", .entry = "a"};
  spec.stages = {{.name = "a", .next = {"b"}}, {.name = "b", .terminal = true, .host = "far", .replicas = 2}};
  return spec;
}

class MembershipTest : public ::testing::Test {
 protected:
  static wire::Register registration(const std::string& stage, uint32_t replica, uint64_t incarnation) {
    wire::Register message{.reply_to = stage + "-endpoint", .spec_hash = 5};
    message.self = {.stage = stage, .replica = replica, .incarnation = incarnation, .endpoint = "e", .pid = 9};
    return message;
  }
  void join(const std::string& stage, uint32_t replica = 0, uint64_t incarnation = 1) {
    members.handle(registration(stage, replica, incarnation), now);
  }
  void beat(const std::string& stage, uint32_t replica, uint64_t incarnation,
            wire::StageState state = wire::StageState::kReady) {
    members.handle(wire::StageStatus{.stage = stage, .incarnation = incarnation, .state = state, .replica = replica},
                   now);
  }
  // A heartbeat of the first incarnation of a replica that is ready, with these facts; what is known of it then.
  ReplicaView ready_with(wire::StageStatus facts) {
    facts.incarnation = 1;
    facts.state = wire::StageState::kReady;
    members.handle(wire::StageStatus(facts), now);
    return members.replicas()[members.find(facts.stage, facts.replica).value()];
  }
  // The answers to a registration, of the messages since the last call.
  std::vector<wire::Welcome> welcomes() {
    std::vector<wire::Welcome> out;
    for (const auto& message : members.take_messages()) {
      if (const auto* welcome = std::get_if<wire::Welcome>(&message.message)) out.push_back(*welcome);
    }
    return out;
  }
  std::vector<wire::Peers> tables() {
    std::vector<wire::Peers> out;
    for (const auto& message : members.take_messages()) {
      if (const auto* table = std::get_if<wire::Peers>(&message.message)) out.push_back(*table);
    }
    return out;
  }
  StatusCode refusal(const wire::Register& message) {
    (void)welcomes();
    members.handle(message, now);
    const auto sent = welcomes();
    EXPECT_EQ(sent.size(), 1u);
    return sent.empty() || !sent[0].refused ? StatusCode::kOk : sent[0].refused->code;
  }
  wire::Origin origin(const std::string& stage, uint64_t incarnation, uint64_t session = 7) {
    return {.session = session, .stage = stage, .incarnation = incarnation};
  }

  int64_t now = 100;
  PipelineSpec spec = two_stages();
  Membership members{spec, {.session = 7, .spec_hash = 5}, 100};
};

TEST_F(MembershipTest, OneOfAnotherHostIsAwaited) {
  EXPECT_EQ(members.why_not_serving(members.replicas()[0]), "starting");
  EXPECT_EQ(members.why_not_serving(members.replicas()[1]), "awaited from host 'far'");
  join("b");
  members.down("b", 0, 1, "it was stopped", now);
  EXPECT_EQ(members.why_not_serving(members.replicas()[1]), "it was stopped; awaited from host 'far'");
}

TEST_F(MembershipTest, AStageIsWelcomedAndAllGetTheTable) {
  join("a");
  const auto sent = members.take_messages();
  ASSERT_EQ(sent.size(), 2u);
  const auto& welcome = std::get<wire::Welcome>(sent[0].message);
  EXPECT_EQ(welcome.stage, "a");
  EXPECT_EQ(welcome.incarnation, 1u);
  EXPECT_EQ(welcome.from.session, 7u);
  EXPECT_EQ(welcome.lease_ms, 2000);
  EXPECT_FALSE(welcome.refused);
  const auto& table = std::get<wire::Peers>(sent[1].message);
  EXPECT_EQ(table.epoch, 1u);
  ASSERT_EQ(table.peers.size(), 1u);
  EXPECT_TRUE(table.peers[0].up);
  join("b", 1);
  const auto after = tables();
  ASSERT_EQ(after.size(), 2u);  // to both
  EXPECT_EQ(after[0].epoch, 2u);
  EXPECT_EQ(after[0].peers.size(), 2u);
  const auto events = members.take_events();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(members.replicas()[events[1].slot].name, "b-1");
}

TEST_F(MembershipTest, ARepeatedRegistrationIsAnsweredAndChangesNothing) {
  join("a");
  (void)members.take_messages();
  (void)members.take_events();
  join("a");
  EXPECT_EQ(welcomes().size(), 1u);
  EXPECT_TRUE(members.take_events().empty());
  EXPECT_EQ(members.epoch(), 1u);
}

TEST_F(MembershipTest, Refusals) {
  EXPECT_EQ(refusal(registration("c", 0, 1)), StatusCode::kNotFound);
  EXPECT_EQ(refusal(registration("a", 1, 1)), StatusCode::kInvalidArgument);
  wire::Register other = registration("a", 0, 1);
  other.spec_hash = 6;
  EXPECT_EQ(refusal(other), StatusCode::kConflict);
  EXPECT_EQ(refusal(registration("a", 0, 0)), StatusCode::kConflict);  // incarnations count from 1
  EXPECT_EQ(refusal(registration("a", 0, 4)), StatusCode::kOk);
  EXPECT_EQ(refusal(registration("a", 0, 3)), StatusCode::kConflict);  // not newer
  wire::Register rival = registration("a", 0, 5);
  rival.self.pid = 10;
  EXPECT_EQ(refusal(rival), StatusCode::kUnavailable);  // the other one lives
  wire::Register double_ganger = registration("a", 0, 4);
  double_ganger.self.pid = 10;
  EXPECT_EQ(refusal(double_ganger), StatusCode::kConflict);
  EXPECT_EQ(members.counters().refused, 7u);
  EXPECT_EQ(members.counters().unknown, 2u);
}

TEST_F(MembershipTest, WhoIsExpectedAloneMayCome) {
  members.expect("a", 0, 8);
  EXPECT_EQ(refusal(registration("a", 0, 9)), StatusCode::kConflict);
  EXPECT_EQ(refusal(registration("a", 0, 8)), StatusCode::kOk);
}

TEST_F(MembershipTest, HeartbeatsRenewTheLeaseAndSilenceLosesIt) {
  join("a");
  join("b");
  (void)members.take_events();
  for (const int64_t end = now + 5000; now < end; now += 250) {
    beat("a", 0, 1);
    if (now < 1000) beat("b", 0, 1);
    members.tick(now);
    const auto events = members.take_events();
    // b was last seen at 850 and is lost with the first tick that is 2000 ms later.
    EXPECT_EQ(events.size(), now == 2850 ? 1u : 0u) << now;
    for (const auto& event : events) {
      EXPECT_EQ(event.kind, Kind::kLost);
      EXPECT_EQ(members.replicas()[event.slot].name, "b-0");
      EXPECT_EQ(event.reason, "silent for 2000 ms");
    }
  }
  const auto sent = tables();
  const auto& last = sent.back().peers;
  ASSERT_EQ(last.size(), 2u);
  EXPECT_FALSE(last[1].up);
}

TEST_F(MembershipTest, TheTableIsSentAgain) {
  join("a");
  beat("a", 0, 1);
  (void)members.take_messages();
  const uint64_t epoch = members.epoch();
  for (int i = 0; i < 8; ++i) now += 250, beat("a", 0, 1), members.tick(now);
  EXPECT_EQ(tables().size(), 2u);
  EXPECT_EQ(members.epoch(), epoch);
}

TEST_F(MembershipTest, TheTableHasWhoServes) {
  const auto serves = [this] { return tables().back().peers.front().serves; };  // "a"
  join("b");
  join("a");
  EXPECT_FALSE(serves());
  beat("a", 0, 1);
  EXPECT_TRUE(serves());
  beat("a", 0, 1, wire::StageState::kStalled);
  EXPECT_FALSE(serves());
  beat("a", 0, 1);
  EXPECT_TRUE(serves());
  beat("a", 0, 1);
  EXPECT_TRUE(tables().empty()) << "nothing has changed";
  members.require_weights({"a"}, {.version = 2});
  members.tick(now += 10);
  EXPECT_FALSE(serves()) << "it has other weights";
  join("a", 0, 2);
  EXPECT_FALSE(serves());
}

TEST_F(MembershipTest, AfterAPauseOfTheCoordinatorNoLeaseIsLost) {
  join("a");
  members.tick(now += 100);
  members.tick(now += 60'000);
  EXPECT_EQ(members.take_events().size(), 1u);  // that it joined
  for (int i = 0; i < 8; ++i) members.tick(now += 250);
  const auto events = members.take_events();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].kind, Kind::kLost);
}

// Its heartbeats from before the pause are handled before the tick that shows the pause; it died meanwhile.
TEST_F(MembershipTest, AfterAPauseOneThatIsSilentIsLostAtItsLease) {
  join("a");
  members.tick(now += 100);
  now += 60'000;
  beat("a", 0, 1);
  members.tick(now);
  EXPECT_EQ(members.take_events().size(), 1u);  // that it joined
  for (int i = 0; i < 7; ++i) members.tick(now += 250);
  EXPECT_TRUE(members.take_events().empty() && members.replicas()[0].serves());
  members.tick(now += 250);
  const auto events = members.take_events();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].reason, "silent for 2000 ms");
}

TEST_F(MembershipTest, AZombieIsFencedAndNotifiedOnce) {
  join("a");
  beat("a", 0, 1);
  members.down("a", 0, 1, "killed", now);
  (void)members.take_messages();
  EXPECT_FALSE(members.current_slot(origin("a", 1)));
  beat("a", 0, 1);
  beat("a", 0, 1);
  const auto sent = welcomes();
  ASSERT_EQ(sent.size(), 1u);  // not for each heartbeat
  ASSERT_TRUE(sent[0].refused);
  EXPECT_NE(sent[0].refused->message.find("lost its lease (killed)"), std::string::npos);
  EXPECT_EQ(members.counters().fenced, 3u);
  EXPECT_FALSE(members.replicas()[0].up);
}

TEST_F(MembershipTest, TheNextIncarnationIsItselfAndItsPredecessorIsNot) {
  join("a", 0, 1);
  members.down("a", 0, 1, "killed", now);
  members.down("a", 0, 1, "killed", now);  // reported twice
  join("a", 0, 2);
  members.down("a", 0, 1, "killed", now);  // an old report
  EXPECT_TRUE(members.replicas()[0].up);
  EXPECT_TRUE(members.current_slot(origin("a", 2)));
  EXPECT_FALSE(members.current_slot(origin("a", 1)));
  EXPECT_FALSE(members.current_slot(origin("a", 2, 6)));  // of another session
  EXPECT_FALSE(members.current_slot(origin("z", 2)));
  EXPECT_EQ(members.counters().fenced, 2u);
  EXPECT_EQ(members.counters().unknown, 1u);
  beat("a", 0, 1, wire::StageState::kFailed);
  EXPECT_TRUE(members.replicas()[0].up);
  EXPECT_EQ(members.take_events().size(), 3u);
}

TEST_F(MembershipTest, OneWhoseWelcomeWasLostMayComeAgain) {
  join("a", 0, 3);
  members.down("a", 0, 3, "silent", now);
  EXPECT_EQ(refusal(registration("a", 0, 3)), StatusCode::kOk);  // it has never sent a heartbeat
  beat("a", 0, 3);
  members.down("a", 0, 3, "silent", now);
  EXPECT_EQ(refusal(registration("a", 0, 3)), StatusCode::kConflict);
  EXPECT_EQ(refusal(registration("a", 0, 4)), StatusCode::kOk);
}

TEST_F(MembershipTest, AStageThatStandsStillOrFailsIsLost) {
  join("a");
  join("b");
  (void)members.take_events();
  beat("a", 0, 1, wire::StageState::kStalled);
  for (int i = 0; i < 1; ++i) {
    EXPECT_TRUE(members.take_events().empty());
    now += 250;
    beat("a", 0, 1, wire::StageState::kStalled);
    members.tick(now);
  }
  auto events = members.take_events();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(members.replicas()[events[0].slot].name, "a");
  members.handle(
      wire::StageStatus{.stage = "b", .incarnation = 1, .state = wire::StageState::kFailed, .message = "oom"}, now);
  events = members.take_events();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].reason, "oom");
}

// The coordinator stood still for so long that the stage gave it up: it is the same process, and need not be killed.
TEST_F(MembershipTest, AProcessThatBeganAnewByItselfIsLostAndBackAtOnce) {
  join("a");
  (void)members.take_events();
  wire::Register again = registration("a", 0, 5);
  again.self.pid = members.replicas()[0].peer.pid + 1;
  members.handle(again, now);
  EXPECT_TRUE(members.take_events().empty());  // another process: the place is taken
  again.self.pid = members.replicas()[0].peer.pid;
  members.handle(again, now);
  const auto events = members.take_events();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].kind, MembershipEvent::Kind::kLost);
  EXPECT_TRUE(events[0].anew);
  EXPECT_EQ(events[1].kind, MembershipEvent::Kind::kJoined);
  EXPECT_EQ(events[1].incarnation, 5u);
  EXPECT_TRUE(members.replicas()[0].up);
}

TEST_F(MembershipTest, OneThatIsStalledForAMomentIsNot) {
  join("a");
  (void)members.take_events();
  for (int i = 0; i < 20; ++i) {
    now += 250;
    beat("a", 0, 1, i % 2 == 0 ? wire::StageState::kStalled : wire::StageState::kReady);
    members.tick(now);
  }
  EXPECT_TRUE(members.take_events().empty());
}

// With a lease that is longer than kSilentMs a stage that stands still keeps its requests, and gets no new ones.
TEST_F(MembershipTest, OneThatIsSilentServesNothingNewAndIsNotLost) {
  members = Membership(spec, {.session = 7, .spec_hash = 5, .lease_ms = 60'000}, now);
  join("a");
  beat("a", 0, 1);
  EXPECT_TRUE(members.replicas()[0].serves());
  members.take_events();
  for (const int64_t end = now + kSilentMs; now < end;) members.tick(now += 100);
  EXPECT_TRUE(members.replicas()[0].up);
  EXPECT_FALSE(members.replicas()[0].serves());
  EXPECT_EQ(members.why_not_serving(members.replicas()[0]), "stalled, silent for 2000 ms");
  EXPECT_TRUE(members.take_events().empty());
  beat("a", 0, 1);
  EXPECT_TRUE(members.replicas()[0].serves());
  EXPECT_EQ(members.why_not_serving(members.replicas()[0]), "");
}

TEST_F(MembershipTest, ADifferenceOfSpecsIsNamed) {
  MembershipOptions options{.session = 7, .spec_hash = 5};
  options.same_spec = [](uint64_t theirs, uint64_t ours) {
    return theirs / 10 == ours / 10 ? ok_status() : Status(StatusCode::kConflict, "another model");
  };
  members = Membership(spec, options, now);
  wire::Register other = registration("a", 0, 1);
  other.spec_hash = 15;
  (void)welcomes();
  members.handle(other, now);
  const auto sent = welcomes();
  ASSERT_EQ(sent.size(), 1u);
  ASSERT_TRUE(sent[0].refused);
  EXPECT_EQ(sent[0].refused->message, "stage 'a': another model");
  other.spec_hash = 6;
  EXPECT_EQ(refusal(other), StatusCode::kOk);
}

// A replica with other weights than the engine's gets no requests, whatever its state; one without weights does.
TEST_F(MembershipTest, StaleWeightsDoNotServe) {
  join("a");
  join("b", 0);
  beat("b", 0, 1);
  const auto with_weights = [&](uint64_t version) {
    members.handle(
        wire::StageStatus{.stage = "a", .incarnation = 1, .state = wire::StageState::kReady, .weight_version = version},
        now);
  };
  with_weights(1);
  EXPECT_TRUE(members.replicas()[0].serves());
  members.require_weights({"a"}, {.version = 2});
  EXPECT_FALSE(members.replicas()[0].serves());
  ASSERT_EQ(members.stale().size(), 1u);
  EXPECT_EQ(members.stale()[0].wanted.version, 2u);
  EXPECT_NE(members.why_not_serving(members.replicas()[0]).find("stale, has weight version 1; wanted 2"),
            std::string::npos);
  members.note_weights("a", 0, "it loads /w/2");
  EXPECT_NE(members.why_not_serving(members.replicas()[0]).find("it loads /w/2"), std::string::npos);
  EXPECT_TRUE(members.replicas()[1].serves());
  members.set_weights(0, 2, 0);  // its reply, before its heartbeat
  EXPECT_TRUE(members.replicas()[0].serves());
  with_weights(2);
  EXPECT_TRUE(members.replicas()[0].serves());
  EXPECT_TRUE(members.stale().empty());
}

// Between the first reply to a switch and the last one, replicas of both versions are placed: no request is refused.
TEST_F(MembershipTest, BothVersionsServeWhileASwitchIsUnderWay) {
  join("a");
  const auto with_weights = [&](uint64_t version, uint64_t checksum) {
    members.handle(wire::StageStatus{.stage = "a",
                                     .incarnation = 1,
                                     .state = wire::StageState::kReady,
                                     .weight_version = version,
                                     .weights_checksum = checksum},
                   now);
    return members.replicas()[0].serves();
  };
  EXPECT_TRUE(with_weights(1, 10));
  EXPECT_FALSE(with_weights(2, 20));
  members.accept_weights({"a"}, {.version = 2, .checksum = 20});
  EXPECT_TRUE(with_weights(2, 20));
  EXPECT_TRUE(with_weights(1, 10));
  EXPECT_FALSE(with_weights(2, 21));
  members.accept_weights({"a"}, {});
  EXPECT_FALSE(with_weights(2, 20));
  members.require_weights({"a"}, {.version = 2, .checksum = 20});
  EXPECT_TRUE(with_weights(2, 20));
  EXPECT_FALSE(with_weights(1, 10));
}

// The first replica of a stage shows which weights and files it has; one that loaded others under the same version does
// not serve, and neither does one that is started again over other files.
TEST_F(MembershipTest, OtherBytesUnderTheSameVersionDoNotServe) {
  join("a");
  join("b", 0);
  join("b", 1);
  const auto has = [&](const char* stage, uint32_t replica, uint64_t weights, uint64_t text) {
    return ready_with(
        {.stage = stage, .weight_version = 1, .replica = replica, .weights_checksum = weights, .text_checksum = text});
  };
  EXPECT_TRUE(has("b", 0, 7, 8).serves());
  EXPECT_TRUE(has("a", 0, 9, 9).serves());  // another stage, another model
  EXPECT_TRUE(has("b", 1, 7, 8).serves());
  const ReplicaView other_weights = has("b", 1, 6, 8);
  EXPECT_FALSE(other_weights.serves());
  EXPECT_NE(members.why_not_serving(other_weights).find("have the checksum 0000000000000006; wanted 0000000000000007"),
            std::string::npos);
  EXPECT_TRUE(members.stale().empty());  // no load of the same version would change that
  const ReplicaView other_text = has("b", 1, 7, 5);
  EXPECT_FALSE(other_text.serves());
  EXPECT_NE(members.why_not_serving(other_text).find("tokenizer have the checksum 0000000000000005"),
            std::string::npos);
  EXPECT_TRUE(has("b", 1, 7, 8).serves());
}

// Towers, a talker, a range of layers: no update changes them, so that the first ones hold whatever version serves.
TEST_F(MembershipTest, OtherBytesOfFrozenWeightsServeUnderNoVersion) {
  join("a");
  join("b", 0);
  join("b", 1);
  const auto has = [&](const char* stage, uint32_t replica, uint64_t version, uint64_t frozen) {
    return ready_with({.stage = stage,
                       .weight_version = version,
                       .replica = replica,
                       .weights_checksum = version,
                       .frozen_checksum = frozen});
  };
  EXPECT_TRUE(has("b", 0, 1, 7).serves());
  EXPECT_TRUE(has("a", 0, 0, 9).serves());  // another stage, without weights that are updated
  EXPECT_FALSE(has("a", 0, 0, 8).serves());
  EXPECT_TRUE(has("b", 1, 1, 7).serves());
  members.require_weights({"b"}, {.version = 2, .checksum = 2});
  EXPECT_TRUE(has("b", 0, 2, 7).serves());
  const ReplicaView other = has("b", 1, 2, 6);
  EXPECT_FALSE(other.serves());
  EXPECT_NE(members.why_not_serving(other).find("have the checksum 0000000000000006; wanted 0000000000000007"),
            std::string::npos);
  EXPECT_TRUE(members.stale().empty());
  EXPECT_TRUE(has("b", 1, 2, 7).serves());
}

}  // namespace
}  // namespace millrace
