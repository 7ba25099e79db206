// Chunks of many requests in one message: what a step sends, what a refused batch keeps, what one bad chunk costs.
#include "stages/testing/one_stage.h"

namespace millrace::testing {
namespace {

using StageLoopBatch = OneStage;

// A whole step of many requests is one message, and a small tensor travels in it.
TEST_F(StageLoopBatch, AStepIsOneMessageForEachReceiver) {
  spec_.next = {"x"};
  result(with_tensor(3, 500));
  make();
  for (uint64_t id = 1; id <= 100; ++id) give(payload(id, "a", number(1)));
  run(0);
  const auto batches = out("x")->all<wire::ChunkBatch>();
  ASSERT_EQ(batches.size(), 1u);
  EXPECT_EQ(batches[0].chunks.size(), 100u);
  EXPECT_EQ(hub_.total_puts, 0u);
  EXPECT_TRUE(same_bits(value_of(batches[0].chunks[7], hub_), with_tensor(3, 500)));
  EXPECT_EQ(out("a")->all<wire::AckBatch>().size(), 1u);
  EXPECT_EQ(out("a")->acks().size(), 100u);
  expect_clean();
}

// Behind a batch that its receiver refuses, everything waits in its own queue, and nothing is lost or moved.
TEST_F(StageLoopBatch, ARefusedBatchIsKept) {
  spec_.stream_to = {"x"};
  make();
  out("x")->answer = error(StatusCode::kResourceExhausted, "full");
  for (int64_t n = 0; n < 5; ++n) work(1, [n](Emit& emit) { emit.chunk({1}, number(n)); });
  EXPECT_EQ(loop_->books().queued_items, 5u);
  EXPECT_TRUE(out("x")->sent.empty());
  out("x")->answer = ok_status();
  run(2 * loop::kRetryMs);
  const auto sent = out("x")->with<wire::StreamValue>();
  ASSERT_EQ(sent.size(), 5u);
  for (uint64_t n = 0; n < 5; ++n) EXPECT_EQ(sent[n].seq, n);
  EXPECT_EQ(loop_->books().queued_items, 0u);
}

// What is in a refused batch goes with its request, and what others have in it does not.
TEST_F(StageLoopBatch, AnEndedRequestLeavesARefusedBatch) {
  spec_.next = {"x"};
  result(number(3));
  make();
  out("x")->answer = error(StatusCode::kResourceExhausted, "full");
  receive(payload(1, "a", number(1)));
  give(payload(2, "a", number(1)));
  run(0);
  deliver(wire::AbortRequest{.id = {1}});
  EXPECT_EQ(acks(1), 1u);
  out("x")->answer = ok_status();
  run(2 * loop::kRetryMs);
  ASSERT_EQ(out("x")->chunks().size(), 1u);
  EXPECT_EQ(out("x")->chunks()[0].id.value, 2u);
  expect_clean();
}

// An outbox that refuses what has one of the requests in it.
struct PickyOutbox : RecordingOutbox {
  Status send(wire::Message& message) override {
    if (const auto* batch = std::get_if<wire::ChunkBatch>(&message)) {
      for (const wire::Chunk& one : batch->chunks) {
        if (one.id.value == 2) return error(StatusCode::kTooLarge, "a frame too large");
      }
    }
    return RecordingOutbox::send(message);
  }
};

TEST_F(StageLoopBatch, AChunkThatCannotBeSentFailsItsRequestAlone) {
  spec_.next = {"x"};
  result(number(3));
  outs_[{"x", 0}] = std::make_shared<PickyOutbox>();
  make();
  for (uint64_t id = 1; id <= 3; ++id) give(payload(id, "a", number(1)));
  run(0);
  EXPECT_NE(failure(2, StatusCode::kTooLarge).find("'x'"), std::string::npos);
  EXPECT_EQ(ends().size(), 1u);
  ASSERT_EQ(out("x")->chunks().size(), 2u);
  EXPECT_EQ(loop_->counters().finished, 2u);
  expect_clean();
}

TEST_F(StageLoopBatch, AReceiverThatCannotBeReachedIsWaitedForAndThenFailsItsRequests) {
  spec_.next = {"x"};
  result(number(3));
  make();
  out("x")->answer = error(StatusCode::kUnavailable, "not connected");
  receive(payload(1, "a", number(1)));
  run(loop::kPeerWaitMs / 2);
  receive(payload(2, "a", number(1)));
  EXPECT_TRUE(ends().empty());
  run(loop::kPeerWaitMs / 2 + 10);
  EXPECT_NE(failure(1, StatusCode::kUnavailable).find("not connected"), std::string::npos);
  EXPECT_EQ(ends().size(), 1u);  // the other one waits for its own time
  out("x")->answer = ok_status();
  run(2 * loop::kRetryMs);
  ASSERT_EQ(out("x")->chunks().size(), 1u);
  EXPECT_EQ(out("x")->chunks()[0].id.value, 2u);
  expect_clean();
}

TEST_F(StageLoopBatch, ABatchForADeadReplicaIsDropped) {
  spec_.next = {"x"};
  result(number(3));
  make();
  out("x")->answer = error(StatusCode::kResourceExhausted, "full");
  receive(payload(1, "a", number(1)));
  incarnation_["x"] = 5;
  peers();
  EXPECT_EQ(failure(1, StatusCode::kUnavailable), "mid: stage 'x' died");
  out("x")->answer = ok_status();
  run(2 * loop::kRetryMs);
  EXPECT_TRUE(out("x")->chunks().empty());
  expect_clean();
}

// One batch has chunks of many requests: each is handled as if it had come alone, a bad one costs its request alone.
TEST_F(StageLoopBatch, ABatchServesManyRequests) {
  make();
  receive(payload(3, "c", number(1)));
  wire::ChunkBatch batch{.from = {kSession, "a", 0, 0}, .to = "mid"};
  for (Incoming one : {payload(1, "a", number(1)), payload(2, "a", number(2)), chunk(3, "a", 0), chunk(3, "a", 5),
                       chunk(3, "a", 1), payload(4, "a", number(4))}) {
    batch.chunks.push_back(one.chunk);
  }
  deliver(std::move(batch));
  EXPECT_TRUE(called("start 1") && called("start 2") && called("start 4"));
  failure(3, StatusCode::kUnavailable);
  EXPECT_EQ(ends().size(), 1u);
  const auto acks = out("a")->all<wire::AckBatch>();
  ASSERT_EQ(acks.size(), 1u);  // for all of them
  EXPECT_EQ(acks[0].acks.size(), 3u);
}

TEST_F(StageLoopBatch, SmallTensorsNeedNoRelay) {
  make();
  wire::Payload small = inline_payload(with_tensor(5, 100));
  ASSERT_TRUE(put_inline(lift(with_tensor(5, 100))->parts, small));
  hub_.holds_gets = true;
  receive(lying_payload(1, "a", small));
  ASSERT_TRUE(called("start 1"));
  EXPECT_TRUE(same_bits(log_->payloads.at(1), with_tensor(5, 100)));
  EXPECT_EQ(loop_->books().gets, 0u);
}

// What lost its opening is not known here, and its number shows that something is missing.
TEST_F(StageLoopBatch, ALostFirstChunkFailsTheRequest) {
  make();
  receive(chunk(1, "a", 1));
  EXPECT_EQ(failure(1, StatusCode::kUnavailable), "mid: chunk 1 of 'a' came; wanted chunk 0: one is lost");
  expect_clean();
}

TEST_F(StageLoopBatch, AResultBeforeTheEndOfItsStreamFails) {
  spec_.can_accept_stream_before_payload = true;
  make();
  receive(chunk(1, "a", 0));
  receive(payload(1, "a", number(1), 1));
  failure(1, StatusCode::kConflict);
  receive(chunk(2, "a", 0));
  receive(done(2, "a", 1));
  receive(payload(2, "a", number(1), 2));
  EXPECT_TRUE(called("start 2"));
  EXPECT_EQ(out("a")->acks().back().count, 3u);  // chunk, end, result
}

}  // namespace
}  // namespace millrace::testing
