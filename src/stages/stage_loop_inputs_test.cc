// What comes into a stage: fan-in, streams, order, repeats, wrong senders.
#include "stages/testing/one_stage.h"

namespace millrace::testing {
namespace {

class StageLoopIn : public OneStage {
 protected:
  void fan_in() {
    spec_.wait_for = {"a", "b", "c"};
    spec_.merge = "sum";
    library_.merges["sum"] = [](std::map<std::string, Value> payloads) -> Result<Value> {
      Value out;
      for (auto& [from, value] : payloads) out.set(from, *value.find("n"));
      return out;
    };
  }
  void rule(std::vector<std::string> answer, const std::string& who = "a") {
    spec_.wait_for_rule = "rule";
    library_.wait_rules["rule"] = [answer, who](ReqId, const std::string& from,
                                                const Value&) -> Result<std::optional<std::vector<std::string>>> {
      if (from != who) return std::optional<std::vector<std::string>>();
      return std::optional<std::vector<std::string>>(answer);
    };
  }
  int64_t merged(uint64_t id, const char* from) const { return *log_->payloads.at(id).find(from)->get<int64_t>(); }
};

TEST_F(StageLoopIn, APayloadStartsTheWork) {
  make();
  receive(payload(1, "a", number(5)));
  EXPECT_TRUE(called("start 1"));
  const auto acks = out("a")->acks();
  ASSERT_EQ(acks.size(), 1u);
  EXPECT_EQ(acks[0].count, 1u);
}

TEST_F(StageLoopIn, FanInKeepsRequestsApart) {
  fan_in();
  make();
  receive(payload(1, "a", number(1)));
  receive(payload(2, "b", number(20)));
  receive(payload(1, "b", number(10)));
  receive(payload(2, "a", number(2)));
  EXPECT_FALSE(called("start 1") || called("start 2"));
  receive(payload(2, "c", number(200)));
  receive(payload(1, "c", number(100)));
  ASSERT_TRUE(called("start 1") && called("start 2"));
  EXPECT_EQ(merged(1, "a") + merged(1, "b") + merged(1, "c"), 111);
  EXPECT_EQ(merged(2, "a") + merged(2, "b") + merged(2, "c"), 222);
}

TEST_F(StageLoopIn, TheRuleNamesTheSourcesOfEachRequest) {
  fan_in();
  rule({"a", "c"});
  make();
  receive(payload(1, "c", number(3)));
  EXPECT_FALSE(called("start 1"));
  receive(payload(1, "a", number(1)));
  EXPECT_TRUE(called("start 1"));
  receive(payload(1, "b", number(2)));
  EXPECT_NE(failure(1, StatusCode::kConflict).find("'b'"), std::string::npos);
  expect_clean();
}

TEST_F(StageLoopIn, ASourceOutsideTheRulesAnswerFailsTheRequestHoweverItComes) {
  fan_in();
  rule({"a"});
  make();
  receive(payload(1, "b", number(2)));
  receive(payload(1, "a", number(1)));
  failure(1, StatusCode::kConflict);
  EXPECT_FALSE(called("start 1"));
  expect_clean();
}

TEST_F(StageLoopIn, ARuleOrMergeThatIsWrongFailsItsRequestAlone) {
  fan_in();
  rule({"a", "unknown"});
  make();
  receive(payload(1, "a", number(1)));
  EXPECT_NE(failure(1, StatusCode::kInternal).find("'unknown'"), std::string::npos);
  expect_clean();
}

TEST_F(StageLoopIn, AThrowingMergeFailsItsRequestAlone) {
  fan_in();
  library_.merges["sum"] = [](std::map<std::string, Value> payloads) -> Result<Value> {
    if (*payloads.at("a").find("n")->get<int64_t>() == 13) throw std::runtime_error("unlucky");
    return Value(1);
  };
  rule({"a"});
  make();
  receive(payload(1, "a", number(13)));
  receive(payload(2, "a", number(14)));
  EXPECT_NE(failure(1, StatusCode::kInternal).find("unlucky"), std::string::npos);
  EXPECT_TRUE(called("start 2"));
}

TEST_F(StageLoopIn, WithoutFanInASecondSourceIsAnError) {
  make();
  receive(payload(1, "a", number(1)));
  receive(payload(1, "b", number(1)));
  failure(1, StatusCode::kConflict);
  EXPECT_TRUE(called("drop 1"));
  expect_clean();
}

TEST_F(StageLoopIn, RepeatsAreIgnored) {
  make();
  for (int i = 0; i < 3; ++i) receive(payload(1, "c", number(1)));
  for (int i = 0; i < 3; ++i) receive(chunk(1, "a", 0));
  for (int i = 0; i < 3; ++i) receive(done(1, "a", 1));
  receive(chunk(1, "a", 0));
  EXPECT_EQ(log_->calls, (std::vector<std::string>{"start 1", "chunk 1 a 0", "done 1 a"}));
  EXPECT_EQ(loop_->counters().repeated, 7u);
  EXPECT_TRUE(ends().empty());
}

TEST_F(StageLoopIn, AGapFails) {
  make();
  receive(payload(1, "c", number(1)));
  receive(chunk(1, "a", 0));
  receive(chunk(1, "a", 2));
  EXPECT_NE(failure(1, StatusCode::kUnavailable).find("chunk 2 of 'a' came; wanted chunk 1"), std::string::npos);
  EXPECT_FALSE(called("chunk 1 a 2"));
  expect_clean();
}

TEST_F(StageLoopIn, AChunkAfterTheEndFails) {
  make();
  receive(payload(1, "c", number(1)));
  receive(done(1, "a", 0));
  receive(chunk(1, "a", 1));
  failure(1, StatusCode::kConflict);
  receive(payload(2, "c", number(1)));
  receive(done(2, "a", 0));
  receive(in(2, "a", 1, wire::StageResult{inline_payload(number(1))}));  // a second source's
  failure(2, StatusCode::kConflict);
  receive(payload(3, "a", number(1)));
  receive(chunk(3, "a", 1));  // after the result
  failure(3, StatusCode::kConflict);
  expect_clean();
}

TEST_F(StageLoopIn, ACountThatDisagreesFails) {
  make();
  receive(payload(1, "c", number(1)));
  receive(chunk(1, "a", 0));
  receive(done(1, "a", 2));
  failure(1, StatusCode::kUnavailable);
  receive(payload(2, "c", number(1)));
  receive(done(2, "a", 0));
  receive(done(2, "a", 1));
  failure(2, StatusCode::kUnavailable);
  receive(payload(3, "c", number(1)));
  receive(chunk(3, "a", 0));
  receive(done(3, "a", 0));
  failure(3, StatusCode::kUnavailable);
  expect_clean();
}

TEST_F(StageLoopIn, AnErrorInTheStreamFails) {
  make();
  receive(payload(1, "c", number(1)));
  receive(in(1, "a", 0, wire::Failure{StatusCode::kTooLarge, "too much"}));
  EXPECT_NE(failure(1, StatusCode::kTooLarge).find("too much"), std::string::npos);
  expect_clean();
}

TEST_F(StageLoopIn, TwoReplicasOnOneEdgeFail) {
  config_.replicas["a"] = 2;
  make();
  receive(payload(1, "c", number(1)));
  receive(chunk(1, "a", 0));
  Incoming m = chunk(1, "a", 1);
  m.from.replica = 1;
  receive(m);
  failure(1, StatusCode::kConflict);
  expect_clean();
}

TEST_F(StageLoopIn, AnEarlyChunkFailsByDefault) {
  make();
  receive(chunk(1, "a", 0));
  EXPECT_NE(failure(1, StatusCode::kConflict).find("can_accept_stream_before_payload"), std::string::npos);
  receive(done(2, "a", 0));
  failure(2, StatusCode::kConflict);
  EXPECT_TRUE(log_->calls.empty());
  expect_clean();
}

TEST_F(StageLoopIn, AnEarlyChunkGoesToAWorkerThatTakesIt) {
  spec_.can_accept_stream_before_payload = true;
  make();
  receive(chunk(1, "a", 0));
  receive(done(1, "a", 1));
  receive(payload(1, "c", number(1)));
  EXPECT_EQ(log_->calls, (std::vector<std::string>{"chunk 1 a 0", "done 1 a", "start 1"}));
}

TEST_F(StageLoopIn, AChunkWaitsForAPayloadThatIsBeingFetched) {
  hub_.holds_gets = true;
  make();
  receive(lying_payload(1, "c", put_payload(with_tensor(1), "c")));
  receive(chunk(1, "a", 0));
  EXPECT_TRUE(log_->calls.empty());
  hub_.holds_gets = false;
  run(1);
  EXPECT_EQ(log_->calls, (std::vector<std::string>{"start 1", "chunk 1 a 0"}));
}

TEST_F(StageLoopIn, ChunksThatArriveReorderedAreDeliveredInSequence) {
  hub_.max_delay_ms = 500;
  make();
  receive(payload(1, "a", number(1)));
  std::vector<std::string> wanted = {"start 1"};
  for (uint64_t n = 0; n < 100; ++n) {
    give(put_chunk(1, "b", n, "b" + std::to_string(n)));
    wanted.push_back(fmt::format("chunk 1 b {}", n));
  }
  receive(done(1, "b", 100));
  EXPECT_EQ(hub_.gets.size(), 100u);
  run(1000);
  wanted.emplace_back("done 1 b");
  EXPECT_EQ(log_->calls, wanted);
  EXPECT_EQ(hub_.lent, 0);
  EXPECT_TRUE(hub_.puts.empty());
}

TEST_F(StageLoopIn, AFailedGetFailsItsRequestAlone) {
  make();
  hub_.get_fails = 1;
  receive(lying_payload(1, "a", put_payload(with_tensor(1), "a")));
  EXPECT_NE(failure(1, StatusCode::kInternal).find("checksum"), std::string::npos);
  // What another stage sent and the relay refuses is no fault of the client, which would get a 400.
  hub_.get_error = invalid_argument("the descriptor names a put that is over");
  receive(lying_payload(5, "a", put_payload(with_tensor(1), "a")));
  EXPECT_NE(failure(5, StatusCode::kUnavailable).find("a put that is over"), std::string::npos);
  wire::Payload other = put_payload(with_tensor(1), "a");
  other.relay = "other";
  receive(lying_payload(2, "a", other));
  EXPECT_NE(failure(2, StatusCode::kUnavailable).find("'other'"), std::string::npos);
  other = inline_payload(number(3));
  other.tree.bytes = "\xc1";
  receive(lying_payload(3, "a", other));
  failure(3, StatusCode::kInvalidArgument);
  receive(payload(4, "a", number(4)));
  EXPECT_TRUE(called("start 4"));
}

TEST_F(StageLoopIn, ChunksAreAcknowledgedEverySoManyAndAtTheEnd) {
  make();
  receive(payload(1, "c", number(1)));
  const uint64_t count = wire::kAckEveryChunks * 3 + 5;
  for (uint64_t n = 0; n < count; ++n) receive(chunk(1, "a", n));
  std::vector<uint64_t> acked;
  for (const auto& ack : out("a")->acks()) acked.push_back(ack.count);
  EXPECT_EQ(acked, (std::vector<uint64_t>{32, 64, 96}));
  receive(done(1, "a", count));
  EXPECT_EQ(out("a")->acks().back().count, count + 1);  // the end has a number too
}

TEST_F(StageLoopIn, ATrickleIsAcknowledgedAfterAWhile) {
  make();
  receive(payload(1, "c", number(1)));
  receive(chunk(1, "a", 0));
  EXPECT_TRUE(out("a")->acks().empty());
  run(loop::kAckIdleMs + 5);
  ASSERT_EQ(out("a")->acks().size(), 1u);
  EXPECT_EQ(out("a")->acks()[0].count, 1u);
}

TEST_F(StageLoopIn, ASenderThatDoesNotKeepTheWindowFails) {
  hub_.holds_gets = true;
  make();
  receive(payload(1, "c", number(1)));
  for (uint64_t n = 0; n <= wire::kMaxUnackedChunks; ++n) {
    give(put_chunk(1, "b", n, "b" + std::to_string(n)));
  }
  run(0);
  failure(1, StatusCode::kResourceExhausted);
  hub_.holds_gets = false;
  expect_clean();
}

// From whom nothing more is needed, in the order in which it was reported.
TEST_F(StageLoopIn, InputsCompleteNamesTheSourcesFromWhichEverythingIsHere) {
  const auto reported = [this](uint64_t id) {
    std::vector<std::vector<std::string>> lists;
    for (const auto& m : coordinator_->with<wire::InputsComplete>()) {
      if (m.id.value == id) lists.push_back(std::get<wire::InputsComplete>(m.body).sources);
    }
    return lists;
  };
  using Lists = std::vector<std::vector<std::string>>;
  make();  // payloads come from a, b or c, streams from a and b
  receive(payload(1, "c", number(1)));
  EXPECT_EQ(reported(1), (Lists{{"c"}}));
  receive(chunk(1, "a", 0));
  receive(done(1, "a", 1));
  EXPECT_EQ(reported(1), (Lists{{"c"}, {"a", "c"}}));
  receive(done(1, "a", 1));  // a repeat
  log_->next_tick.push_back([](Emit& emit) { emit.result({1}, number(1)); });
  run(1);
  EXPECT_EQ(reported(1), (Lists{{"c"}, {"a", "c"}, {"a", "b", "c"}}));  // b never streamed, and need not now
  // A stream whose last chunk is being fetched is not here.
  hub_.holds_gets = true;
  receive(payload(2, "c", number(1)));
  receive(put_chunk(2, "a", 0, "a"));
  receive(done(2, "a", 1));
  EXPECT_EQ(reported(2), (Lists{{"c"}}));
  deliver(wire::AbortRequest{.id = {2}});
  EXPECT_EQ(reported(2), (Lists{{"c"}}));
}

TEST_F(StageLoopIn, WithFanInEverythingIsHereWhenTheWorkStarts) {
  spec_.wait_for = {"a", "c"};
  spec_.merge = "m";
  config_.stream_from.clear();
  config_.payload_from = {"a", "c"};
  library_.merges["m"] = [](std::map<std::string, Value>) -> Result<Value> { return Value(1); };
  make();
  receive(payload(1, "a", number(1)));
  EXPECT_TRUE(coordinator_->with<wire::InputsComplete>().empty());  // what is here is not passed on before the other is
  receive(payload(1, "c", number(1)));
  const auto complete = coordinator_->with<wire::InputsComplete>();
  ASSERT_EQ(complete.size(), 1u);
  EXPECT_EQ(std::get<wire::InputsComplete>(complete[0].body).sources, (std::vector<std::string>{"a", "c"}));
}

TEST_F(StageLoopIn, MisaddressedAndStaleMessagesAreIgnoredAndCounted) {
  incarnation_["a"] = 5;
  make();
  const uint64_t& ignored = loop_->counters().misaddressed;
  receive(payload(1, "x", number(1)));  // no predecessor
  Incoming m = payload(1, "a", number(1));
  m.to = "other";
  receive(m);
  EXPECT_EQ(ignored, 2u);
  receive(chunk(1, "c", 0));  // has no stream here
  m = payload(1, "a", number(1));
  m.chunk.opening.reset();  // no chunk that the wire lets through
  receive(m);
  EXPECT_EQ(ignored, 4u);
  m = payload(1, "a", number(1));
  m.from.session = 8;
  receive(m);
  m = payload(1, "a", number(1));
  m.from.incarnation = 4;
  receive(m);
  EXPECT_EQ(loop_->counters().stale, 2u);
  deliver(wire::Submit{.id = {1}, .from = from_coordinator(), .payload = inline_payload(number(1))});
  EXPECT_EQ(ignored, 5u);  // this is no entry
  deliver(wire::AbortAck{});
  EXPECT_EQ(loop_->counters().unexpected, 1u);
  EXPECT_EQ(loop_->books().requests, 0u);
  EXPECT_TRUE(log_->calls.empty());
}

TEST_F(StageLoopIn, MessagesOfAnIncarnationThatIsNotKnownYetWaitForTheTable) {
  make();
  Incoming m = payload(1, "a", number(1));
  m.from.incarnation = 7;
  receive(m);
  EXPECT_EQ(loop_->books().parked, 1u);
  incarnation_["a"] = 7;
  peers();
  EXPECT_TRUE(called("start 1"));
  m = payload(2, "a", number(1));
  m.from.incarnation = 8;
  receive(m);
  run(loop::kParkMs + 10);
  EXPECT_EQ(loop_->books().parked, 0u);
  EXPECT_EQ(loop_->counters().stale, 1u);
}

TEST_F(StageLoopIn, TheEntryTakesEachSubmitOnce) {
  config_.entry = true;
  make();
  const wire::Submit submit{.id = {1},
                            .from = from_coordinator(),
                            .payload = inline_payload(number(4)),
                            .terminals = {"t"},
                            .timeout_ms = 900};
  deliver(submit);
  deliver(submit);
  EXPECT_EQ(log_->calls, (std::vector<std::string>{"start 1"}));
  wire::Submit stale = submit;
  stale.id = {2};
  stale.from.session = 1;
  deliver(stale);
  EXPECT_EQ(log_->calls.size(), 1u);
}

TEST_F(StageLoopIn, MoreRequestsThanTheSpecAllowsAreRefused) {
  spec_.resources.max_requests = 2;
  make();
  for (uint64_t id = 1; id <= 3; ++id) receive(payload(id, "a", number(1)));
  failure(3, StatusCode::kResourceExhausted);
  EXPECT_EQ(log_->calls, (std::vector<std::string>{"start 1", "start 2"}));
}

TEST_F(StageLoopIn, AWorkerThatThrowsFailsItsRequestAlone) {
  log_->on_start = [](ReqId id, const Value&, Emit& emit) {
    if (id.value == 1) throw std::runtime_error("broken");
    emit.result(id, number(2));
  };
  make();
  receive(payload(1, "a", number(1)));
  receive(payload(2, "a", number(1)));
  EXPECT_NE(failure(1, StatusCode::kInternal).find("broken"), std::string::npos);
  EXPECT_EQ(out("x")->chunks().size(), 1u);
  expect_clean();
}

}  // namespace
}  // namespace millrace::testing
