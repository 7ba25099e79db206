// What goes out of a stage: routes, projections, streams, back-pressure, replicas.
#include "stages/testing/one_stage.h"

namespace millrace::testing {
namespace {

class StageLoopOut : public OneStage {
 protected:
  std::vector<uint64_t> chunk_ids(const std::string& to) {
    std::vector<uint64_t> ids;
    for (const auto& m : out(to)->with<wire::StreamValue>()) ids.push_back(m.seq);
    return ids;
  }
  void ack(uint64_t id, const std::string& from, uint64_t count) {
    deliver(wire::AckBatch{.from = {kSession, from, 0, 0}, .to = "mid", .acks = {{{id}, count}}});
  }
  void client_ack(uint64_t id, uint64_t count, uint64_t session = kSession) {
    deliver(wire::AckBatch{.from = {.session = session}, .to = "mid", .acks = {{{id}, count}}});
  }
};

TEST_F(StageLoopOut, AResultGoesToAllOfNext) {
  result(number(7));
  make();
  receive(payload(1, "a", number(1)));
  for (const char* to : {"x", "y"}) {
    const auto sent = out(to)->chunks();
    ASSERT_EQ(sent.size(), 1u);
    EXPECT_TRUE(std::holds_alternative<wire::StageResult>(sent[0].body));
    EXPECT_EQ(out(to)->all<wire::ChunkBatch>()[0].to, to);
    EXPECT_EQ(sent[0].opening->terminals, std::vector<std::string>{"end"});
    EXPECT_FALSE(payload_in(sent[0]).in_relay());
    EXPECT_TRUE(same_bits(value_of(sent[0], hub_), number(7)));
  }
  EXPECT_EQ(hub_.total_puts, 0u);  // nothing for a relay in it
  EXPECT_TRUE(ends().empty());
  EXPECT_TRUE(called("drop 1"));
  EXPECT_EQ(loop_->counters().finished, 1u);
  expect_clean();
}

TEST_F(StageLoopOut, ARouteNamesASubset) {
  spec_.route = "r";
  library_.routes["r"] = [](ReqId, const Value& v) -> Result<std::vector<std::string>> {
    switch (*v.find("n")->get<int64_t>()) {
      case 1:
        return std::vector<std::string>{"y"};
      case 2:
        return std::vector<std::string>{};
      case 3:
        return std::vector<std::string>{"z"};
      case 4:
        return std::vector<std::string>{"x", "x"};
      case 5:
        return invalid_argument("no idea");
      default:
        throw std::runtime_error("lost");
    }
  };
  log_->on_start = [](ReqId id, const Value& v, Emit& emit) { emit.result(id, v); };
  make();
  for (uint64_t id = 1; id <= 6; ++id) receive(payload(id, "a", number(static_cast<int64_t>(id))));
  EXPECT_EQ(out("y")->chunks().size(), 1u);
  EXPECT_TRUE(out("x")->chunks().empty());
  failure(2, StatusCode::kInternal);
  EXPECT_NE(failure(3, StatusCode::kInternal).find("'z'"), std::string::npos);
  failure(4, StatusCode::kInternal);
  failure(5, StatusCode::kInvalidArgument);
  failure(6, StatusCode::kInternal);
  expect_clean();
}

TEST_F(StageLoopOut, AProjectionSelectsWhatATargetGets) {
  spec_.project_payload = {{"y", "half"}};
  library_.projections["half"] = [](const Value& v) -> Result<Value> {
    const int64_t n = *v.find("n")->get<int64_t>();
    if (n % 2) return invalid_argument("{} is odd", n);
    return number(n / 2);
  };
  log_->on_start = [](ReqId id, const Value& v, Emit& emit) { emit.result(id, v); };
  make();
  receive(payload(1, "a", number(8)));
  EXPECT_TRUE(same_bits(value_of(out("x")->chunks()[0], hub_), number(8)));
  EXPECT_TRUE(same_bits(value_of(out("y")->chunks()[0], hub_), number(4)));
  receive(payload(2, "a", number(9)));
  EXPECT_NE(failure(2, StatusCode::kInvalidArgument).find("9 is odd"), std::string::npos);
  expect_clean();
}

TEST_F(StageLoopOut, TheControlMessageDoesNotWaitForThePut) {
  spec_.next = {"x"};
  result(with_tensor(3));
  make();
  receive(payload(1, "a", number(1)));
  const auto sent = out("x")->chunks();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(hub_.puts.size(), 1u);  // still open
  EXPECT_EQ(loop_->books().puts, 1u);
  EXPECT_EQ(payload_in(sent[0]).relay, "fake");
  EXPECT_TRUE(same_bits(value_of(sent[0], hub_), with_tensor(3)));
  EXPECT_EQ(hub_.puts.begin()->second.request.destination, "x");
  EXPECT_EQ(loop_->counters().finished, 0u);
  take(payload_in(sent[0]));
  EXPECT_EQ(loop_->counters().finished, 1u);
  expect_clean();
}

TEST_F(StageLoopOut, OneSlowRequestDoesNotHoldUpAnother) {
  spec_.next = {"x"};
  hub_.credits = 1;
  result(with_tensor(3));
  make();
  receive(payload(1, "a", number(1)));
  receive(payload(2, "a", number(1)));  // no credit
  EXPECT_EQ(out("x")->chunks().size(), 1u);
  result(number(3));
  receive(payload(3, "a", number(1)));  // needs none
  auto sent = out("x")->chunks();
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent[1].id.value, 3u);
  run(100);
  EXPECT_EQ(out("x")->chunks().size(), 2u);
  take(payload_in(sent[0]));
  run(loop::kRetryMs);
  sent = out("x")->chunks();
  ASSERT_EQ(sent.size(), 3u);
  EXPECT_EQ(sent[2].id.value, 2u);
  take(payload_in(sent[2]));
  expect_clean();
}

TEST_F(StageLoopOut, AFullOutboxHoldsUpItsEdgeAlone) {
  result(number(3));
  make();
  out("x")->answer = error(StatusCode::kResourceExhausted, "full");
  receive(payload(1, "a", number(1)));
  EXPECT_EQ(out("y")->chunks().size(), 1u);
  run(50);
  EXPECT_EQ(loop_->books().queued_items, 1u);
  out("x")->answer = ok_status();
  run(loop::kRetryMs);
  EXPECT_EQ(out("x")->chunks().size(), 1u);
  expect_clean();
}

TEST_F(StageLoopOut, ARefusedSendKeepsItsPut) {
  spec_.next = {"x"};
  result(with_tensor(3));
  make();
  out("x")->answer = error(StatusCode::kResourceExhausted, "full");
  receive(payload(1, "a", number(1)));
  run(50);
  EXPECT_EQ(hub_.total_puts, 1u);
  out("x")->answer = ok_status();
  run(loop::kRetryMs);
  take(payload_in(out("x")->chunks().at(0)));
  EXPECT_EQ(hub_.total_puts, 1u);
  expect_clean();
}

TEST_F(StageLoopOut, AMessageThatCannotBeSentFailsItsRequest) {
  result(number(3));
  make();
  out("x")->answer = error(StatusCode::kTooLarge, "a frame too large");
  receive(payload(1, "a", number(1)));
  EXPECT_NE(failure(1, StatusCode::kTooLarge).find("'x'"), std::string::npos);
  expect_clean();
}

TEST_F(StageLoopOut, AnUnreachableEndpointFailsAtOnce) {
  unreachable_ = "y";
  result(number(3));
  make();
  receive(payload(1, "a", number(1)));
  failure(1, StatusCode::kInvalidArgument);
  expect_clean();
}

TEST_F(StageLoopOut, StreamsEndBeforeTheResultAndCountFromNought) {
  spec_.next = {"x"};
  spec_.stream_to = {"x", "y"};
  make();
  work(1, [](Emit& emit) {
    for (int64_t n = 0; n < 3; ++n) emit.chunk({1}, number(n));
    emit.chunk_to({1}, "y", number(99), "");
    emit.result({1}, number(7));
  });
  const auto sent = out("x")->chunks();
  ASSERT_EQ(sent.size(), 5u);
  for (std::size_t i = 0; i < sent.size(); ++i) EXPECT_EQ(sent[i].seq, i);
  EXPECT_TRUE(std::holds_alternative<wire::StreamEnd>(sent[3].body));
  EXPECT_TRUE(std::holds_alternative<wire::StageResult>(sent[4].body));
  EXPECT_EQ(out("x")->all<wire::ChunkBatch>().size(), 1u);  // all of a step in one message
  EXPECT_EQ(chunk_ids("x"), (std::vector<uint64_t>{0, 1, 2}));
  EXPECT_EQ(chunk_ids("y"), (std::vector<uint64_t>{0, 1, 2, 3}));
  EXPECT_TRUE(std::holds_alternative<wire::StreamEnd>(out("y")->chunks().back().body));
  EXPECT_EQ(out("y")->chunks().back().seq, 4u);
  expect_clean();
}

TEST_F(StageLoopOut, TheRuleSelectsTheTargetsOfAStream) {
  spec_.stream_to = {"x", "y"};
  spec_.stream_done_to = "who";
  library_.routes["who"] = [](ReqId, const Value& payload) -> Result<std::vector<std::string>> {
    if (*payload.find("n")->get<int64_t>() == 0) return std::vector<std::string>{};
    return std::vector<std::string>{"y"};
  };
  make();
  work(1, [](Emit& emit) {
    emit.chunk({1}, number(0));
    emit.result({1}, number(7));
  });
  EXPECT_EQ(out("x")->chunks().size(), 1u);  // the payload alone
  EXPECT_EQ(out("y")->chunks().size(), 3u);
  expect_clean();
  receive(payload(2, "a", number(0)));
  work(2, [](Emit& emit) {
    emit.chunk({2}, number(0));  // to no target
    emit.result({2}, number(7));
  });
  EXPECT_EQ(out("y")->chunks().size(), 4u);
  expect_clean();
  work(3, [](Emit& emit) { emit.chunk_to({3}, "x", number(0), ""); });
  failure(3, StatusCode::kInternal);
  expect_clean();
}

// The requests of these tests have one terminal, "end".
TEST_F(StageLoopOut, WhatLeadsToNoTerminalOfTheRequestIsNotSent) {
  spec_.next = {"x", "y"};
  spec_.stream_to = {"x", "y"};
  config_.reaches = {{"x", {"end", "other"}}, {"y", {"other"}}};
  make();
  work(1, [](Emit& emit) {
    emit.chunk({1}, number(0));
    emit.chunk_to({1}, "y", number(1), "");
    emit.result({1}, number(7));
  });
  EXPECT_EQ(out("x")->chunks().size(), 3u);  // a chunk, the stream's end, the payload
  EXPECT_TRUE(out("y")->chunks().empty());
  EXPECT_TRUE(ends().empty());
  expect_clean();
}

TEST_F(StageLoopOut, OnlyATerminalStreamsToTheClient) {
  make();
  work(1, [](Emit& emit) { emit.chunk({1}, number(0)); });
  failure(1, StatusCode::kInternal);
  work(2, [](Emit& emit) { emit.chunk_to({2}, "", number(0), "text"); });
  failure(2, StatusCode::kInternal);
  expect_clean();
}

TEST_F(StageLoopOut, ATerminalStreamsAndCompletes) {
  spec_.next.clear();
  spec_.terminal = true;
  make();
  work(1, [](Emit& emit) {
    emit.chunk_to({1}, "", number(5), "text");
    emit.chunk({1}, number(6));
    emit.result({1}, number(7));
    emit.chunk({1}, number(8));   // after its end: ignored
    emit.result({1}, number(9));  // so is this
  });
  const auto chunks = coordinator_->with<wire::StreamValue>();
  ASSERT_EQ(chunks.size(), 2u);
  EXPECT_EQ(std::get<wire::StreamValue>(chunks[0].body).modality, "text");
  EXPECT_EQ(chunks[0].seq, 0u);
  EXPECT_EQ(chunks[1].seq, 1u);
  ASSERT_EQ(ends().size(), 1u);
  EXPECT_EQ(ends()[0].seq, 2u);
  EXPECT_TRUE(same_bits(value_of(ends()[0], hub_), number(7)));
  expect_clean();
}

TEST_F(StageLoopOut, AStreamWaitsForItsReceiversAcknowledgements) {
  spec_.stream_to = {"x"};
  make();
  work(1, [](Emit& emit) {
    for (int64_t n = 0; n < 300; ++n) emit.chunk({1}, number(n));
    emit.result({1}, number(7));
  });
  EXPECT_EQ(chunk_ids("x").size(), wire::kMaxUnackedChunks);
  EXPECT_EQ(out("y")->chunks().size(), 1u);  // another edge
  ack(1, "x", 10);
  EXPECT_EQ(chunk_ids("x").size(), wire::kMaxUnackedChunks + 10);
  ack(1, "x", 5);  // an older one
  EXPECT_EQ(chunk_ids("x").size(), wire::kMaxUnackedChunks + 10);
  ack(1, "x", 5000);  // never sent
  EXPECT_EQ(loop_->counters().unexpected, 1u);
  EXPECT_EQ(chunk_ids("x").size(), wire::kMaxUnackedChunks + 10);
  ack(1, "x", 250);
  EXPECT_EQ(chunk_ids("x").size(), 300u);
  EXPECT_TRUE(std::holds_alternative<wire::StageResult>(out("x")->chunks().back().body));
  expect_clean();
}

TEST_F(StageLoopOut, AStreamToTheClientWaitsUntilTheClientHasTakenIt) {
  spec_.next.clear();
  spec_.terminal = true;
  make();
  const auto sent = [this] { return coordinator_->with<wire::StreamValue>().size(); };
  work(1, [](Emit& emit) {
    for (int64_t n = 0; n < 300; ++n) emit.chunk_to({1}, "", number(n), "text");
    emit.result({1}, number(7));
  });
  EXPECT_EQ(sent(), wire::kMaxUnackedChunks);
  client_ack(1, 10);
  EXPECT_EQ(sent(), wire::kMaxUnackedChunks + 10);
  client_ack(1, 20, kSession + 1);  // of another coordinator
  client_ack(1, 5);
  EXPECT_EQ(sent(), wire::kMaxUnackedChunks + 10);
  client_ack(1, 5000);
  EXPECT_EQ(loop_->counters().unexpected, 1u);
  EXPECT_TRUE(ends().empty());
  client_ack(1, 250);
  EXPECT_EQ(sent(), 300u);
  EXPECT_EQ(ends().at(0).seq, 300u);
  expect_clean();
}

TEST_F(StageLoopOut, TheWindowToTheClientIsOfBytesToo) {
  spec_.next.clear();
  spec_.terminal = true;
  make();
  const std::string megabytes(3 << 20, 'x'), more(9 << 20, 'y');
  work(1, [&](Emit& emit) {
    for (int n = 0; n < 5; ++n) emit.chunk_to({1}, "", Value(n == 3 ? more : megabytes), "text");
  });
  const auto sent = [this] { return coordinator_->with<wire::StreamValue>().size(); };
  EXPECT_EQ(sent(), 2u);  // 6 of 8 MiB
  client_ack(1, 1);
  EXPECT_EQ(sent(), 3u);
  client_ack(1, 2);
  EXPECT_EQ(sent(), 3u);
  client_ack(1, 3);
  EXPECT_EQ(sent(), 4u);  // the one that no window holds, alone
  client_ack(1, 4);
  EXPECT_EQ(sent(), 5u);
  deliver(wire::AbortRequest{{1}});
  expect_clean();
}

TEST_F(StageLoopOut, WhatWaitsIsBounded) {
  spec_.stream_to = {"x"};
  make();
  work(1, [](Emit& emit) { emit.chunk({1}, number(0)); });
  work(1, [](Emit& emit) {
    for (std::size_t n = 0; n <= wire::kMaxUnackedChunks + loop::kMaxWaitingChunks; ++n) emit.chunk({1}, number(0));
  });
  EXPECT_NE(failure(1, StatusCode::kResourceExhausted).find("wait for their receivers"), std::string::npos);
  EXPECT_TRUE(std::holds_alternative<wire::Failure>(out("x")->chunks().back().body));
  expect_clean();
}

TEST_F(StageLoopOut, APutThatEndsBadlyFailsUnlessItsReaderHasIt) {
  spec_.next = {"x"};
  hub_.lease_ms = 100;
  result(with_tensor(3));
  make();
  receive(payload(1, "a", number(1)));
  run(110);
  failure(1, StatusCode::kDeadline);
  receive(payload(2, "a", number(1)));
  ack(2, "x", 1);
  run(110);
  EXPECT_EQ(ends().size(), 1u);
  EXPECT_EQ(loop_->counters().late_put_errors, 1u);
  expect_clean();
}

TEST_F(StageLoopOut, AReceiverThatHasEverythingMayDie) {
  result(with_tensor(1));
  make();
  receive(payload(1, "a", number(1)));
  ack(1, "y", 1);
  EXPECT_EQ(loop_->books().requests, 1u);  // x has not acknowledged it
  incarnation_["y"] = 5;
  peers();
  EXPECT_TRUE(ends().empty());
  incarnation_["x"] = 5;
  peers();
  EXPECT_EQ(failure(1, StatusCode::kUnavailable), "mid: stage 'x' died");
  expect_clean();
}

TEST_F(StageLoopOut, AReplicaThatIsDownOrUnknownIsAwaitedAndThenFails) {
  spec_.next = {"x"};
  result(number(3));
  make(false);
  welcome();
  receive(payload(1, "a", number(1)));  // parked: no peer is known
  wire::Peers first = table();
  std::erase_if(first.peers, [](const auto& peer) { return peer.stage == "x"; });
  keep_lease_ = false;
  deliver(first);
  EXPECT_EQ(loop_->books().queued_items, 1u);
  run(500);
  peers();
  EXPECT_EQ(out("x")->chunks().size(), 1u);
  wire::Peers down = table();
  for (auto& peer : down.peers) peer.up = peer.up && peer.stage != "x";
  deliver(down);
  receive(payload(2, "a", number(1)));
  run(loop::kPeerWaitMs / 2);
  EXPECT_EQ(loop_->books().queued_items, 1u);  // the table may be old
  run(loop::kPeerWaitMs);
  failure(2, StatusCode::kUnavailable);
  expect_clean();
}

TEST_F(StageLoopOut, WithoutACommonRelayTensorsCannotGo) {
  spec_.next = {"x"};
  spec_.relay.backend = "shm";
  result(with_tensor(3));
  make();
  receive(payload(1, "a", number(1)));
  EXPECT_NE(failure(1, StatusCode::kUnavailable).find("shm"), std::string::npos);
  expect_clean();
}

}  // namespace
}  // namespace millrace::testing
