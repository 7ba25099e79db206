// Chunks that are lost with a connection: a receiver asks a silent sender by repeating its acknowledgement, and the
// sender answers with what it has sent.
#include "stages/testing/one_stage.h"

namespace millrace::testing {
namespace {

class StageLoopLostChunks : public OneStage {
 protected:
  // Of another stage, or of the coordinator: "".
  void ack(uint64_t id, const std::string& from, uint64_t count, bool repeated = false) {
    deliver(wire::AckBatch{.from = {kSession, from, 0, 0}, .to = "mid", .acks = {{{id}, count, repeated}}});
  }
  void repeated_ack(uint64_t id, const std::string& from, uint64_t count) { ack(id, from, count, true); }
};

// ---- a receiver

// An acknowledgement that is lost with a connection would leave a sender whose window is full waiting for ever.
TEST_F(StageLoopLostChunks, TheLastAcknowledgementIsRepeatedToASilentSender) {
  make();
  receive(payload(1, "c", number(1)));
  receive(chunk(1, "a", 0));
  run(loop::kAckIdleMs + 5);
  ASSERT_EQ(out("a")->acks().size(), 1u);
  run(3 * loop::kAckRepeatMs);
  EXPECT_GE(out("a")->acks().size(), 2u);
  run(60 * loop::kAckRepeatMs);
  EXPECT_GE(out("a")->acks().size(), 5u);
  EXPECT_LE(out("a")->acks().size(), 8u);  // ever more rarely
  const std::vector<wire::Ack> acks = out("a")->acks();
  for (std::size_t i = 0; i < acks.size(); ++i) {
    EXPECT_EQ(acks[i].count, 1u);
    EXPECT_EQ(acks[i].repeated, i > 0);
  }
  receive(done(1, "a", 1));
  EXPECT_EQ(out("a")->acks().back().count, 2u);
  const std::size_t count = out("a")->acks().size();
  run(60 * loop::kAckRepeatMs);
  EXPECT_EQ(out("a")->acks().size(), count);
}

// The worker has taken nothing, since the first chunk is still fetched, while the sender's window may be full.
TEST_F(StageLoopLostChunks, ASilentSenderIsAskedThoughNothingWasTaken) {
  hub_.holds_gets = true;
  make();
  receive(payload(1, "c", number(1)));
  give(put_chunk(1, "b", 0, "b"));
  run(60 * loop::kAckRepeatMs);
  const std::vector<wire::Ack> acks = out("b")->acks();
  ASSERT_GE(acks.size(), 4u);
  EXPECT_LE(acks.size(), 8u);
  for (const wire::Ack& ack : acks) {
    EXPECT_EQ(ack.count, 0u);
    EXPECT_TRUE(ack.repeated);
  }
}

// It has ended the request and answers a repetition: no number could show that its last chunks are lost.
TEST_F(StageLoopLostChunks, ASenderThatHasSentAllEndsWhatLacksAChunk) {
  const wire::Failure all_sent{StatusCode::kUnavailable, "'a' has sent all of its chunks; wanted chunk 1: one is lost"};
  make();
  receive(payload(1, "c", number(1)));
  receive(chunk(1, "a", 0));
  receive(in(1, "a", 0, all_sent));
  EXPECT_EQ(failure(1, StatusCode::kUnavailable), "mid: " + all_sent.message);
  // The end crossed the repetition.
  receive(payload(2, "c", number(1)));
  receive(chunk(2, "a", 0));
  receive(done(2, "a", 1));
  receive(in(2, "a", 0, all_sent));
  EXPECT_EQ(loop_->books().requests, 1u);
  log_->next_tick.push_back([](Emit& emit) { emit.result({2}, number(1)); });
  run(1);
  EXPECT_EQ(out("x")->with<wire::StageResult>().size(), 1u);
  expect_clean();
}

// Its window may be full, so that no chunk follows that would show the gap.
TEST_F(StageLoopLostChunks, ACountOverWhatHasComeEndsTheRequest) {
  make();
  receive(payload(1, "c", number(1)));
  receive(chunk(1, "a", 0));
  receive(in(1, "a", 0, wire::SentCount{1}));
  EXPECT_EQ(loop_->books().requests, 1u);
  receive(in(1, "a", 0, wire::SentCount{257}));
  EXPECT_EQ(failure(1, StatusCode::kUnavailable), "mid: 'a' has sent 257 chunks; wanted chunk 1: one is lost");
  // Everything from there is lost.
  receive(payload(2, "c", number(1)));
  receive(in(2, "a", 0, wire::SentCount{256}));
  EXPECT_EQ(failure(2, StatusCode::kUnavailable), "mid: 'a' has sent 256 chunks; wanted chunk 0: one is lost");
  expect_clean();
}

// ---- a sender

// The last chunks of a stream may be lost with a connection: no number behind them shows it to the receiver, which
// asks.
TEST_F(StageLoopLostChunks, AReceiverThatLacksAChunkGetsAFailure) {
  spec_.next = {"x"};
  spec_.stream_to = {"x"};
  make();
  receive(payload(1, "a", number(1)));
  work(1, [](Emit& emit) { emit.chunk({1}, number(0)); });
  repeated_ack(1, "x", 1);  // the stream goes on
  EXPECT_TRUE(out("x")->with<wire::Failure>().empty());
  work(1, [](Emit& emit) { emit.result({1}, number(7)); });
  expect_clean();
  ack(1, "x", 2);
  repeated_ack(2, "x", 1);  // never seen here
  EXPECT_TRUE(out("x")->with<wire::Failure>().empty());
  repeated_ack(1, "x", 1);
  const auto answers = out("x")->with<wire::Failure>();
  ASSERT_EQ(answers.size(), 1u);
  const auto& why = std::get<wire::Failure>(answers[0].body);
  EXPECT_EQ(why.code, StatusCode::kUnavailable);
  EXPECT_EQ(why.message, "'mid' has sent all of its chunks; wanted chunk 1: one is lost");
  EXPECT_TRUE(ends().empty());  // as far as the coordinator is concerned, the stage has done its part
  run(loop::kTombstoneMs + 10);
  repeated_ack(1, "x", 1);
  EXPECT_EQ(out("x")->with<wire::Failure>().size(), 1u);
}

TEST_F(StageLoopLostChunks, ACoordinatorThatLacksTheResultGetsAFailure) {
  spec_.next.clear();
  spec_.terminal = true;
  make();
  work(1, [](Emit& emit) {
    emit.chunk({1}, number(6));
    emit.result({1}, number(7));
  });
  expect_clean();
  ack(1, "", 1);
  EXPECT_TRUE(coordinator_->with<wire::Failure>().empty());
  repeated_ack(1, "", 1);
  ASSERT_EQ(coordinator_->with<wire::Failure>().size(), 1u);
  // One that failed has reported it.
  work(2, [](Emit& emit) { emit.fail({2}, internal_error("no")); });
  const std::size_t failures = coordinator_->with<wire::Failure>().size();
  repeated_ack(2, "", 1);
  EXPECT_EQ(coordinator_->with<wire::Failure>().size(), failures);
}

// A whole window may be lost with a connection, and the sender, whose window is full, sends nothing more by itself.
TEST_F(StageLoopLostChunks, ARepeatedAckIsAnsweredWithTheCountOfWhatWasSent) {
  const auto counts = [this] {
    std::vector<uint64_t> out_counts;
    for (const auto& m : out("y")->with<wire::SentCount>()) {
      EXPECT_EQ(m.seq, 0u);
      out_counts.push_back(std::get<wire::SentCount>(m.body).count);
    }
    return out_counts;
  };
  spec_.next = {"x"};
  spec_.stream_to = {"y"};
  make();
  receive(payload(1, "a", number(1)));
  repeated_ack(1, "y", 0);  // nothing was sent yet
  const auto window = static_cast<int64_t>(wire::kMaxUnackedChunks);
  work(1, [=](Emit& emit) {
    for (int64_t n = 0; n <= window; ++n) emit.chunk({1}, number(n));
  });
  ack(1, "y", 0);
  EXPECT_EQ(counts(), std::vector<uint64_t>{});
  repeated_ack(1, "y", 0);
  EXPECT_EQ(counts(), std::vector<uint64_t>{256});
  EXPECT_EQ(loop_->counters().unexpected, 0u);
  // The repetition opens the window too, and what it lets out follows the count.
  repeated_ack(1, "y", 3);
  EXPECT_EQ(counts(), (std::vector<uint64_t>{256, 256}));
  EXPECT_EQ(out("y")->with<wire::StreamValue>().size(), 257u);
  repeated_ack(1, "y", 257);  // it has all
  EXPECT_EQ(counts().size(), 2u);
  work(1, [](Emit& emit) { emit.result({1}, number(7)); });
  expect_clean();
}

}  // namespace
}  // namespace millrace::testing
