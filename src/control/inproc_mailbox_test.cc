// Mailboxes over inproc://: the message itself moves, by the same rules as a frame over a socket.
#include <gtest/gtest.h>

#include <array>
#include <thread>

#include "control/zmq_mailbox.h"
#include "wire/codec.h"

namespace millrace {
namespace {

constexpr const char* kEndpoint = "inproc://stage-0-1";

// What a stage sends in one step; `seq` numbers the sender's messages.
wire::Message batch(uint32_t sender, uint64_t seq) {
  wire::ChunkBatch out{.from = {.session = 3, .stage = "generate", .replica = sender, .incarnation = 1}, .to = "text"};
  const wire::TokenDelta tokens{.id = ReqId{7}, .tokens = {1, 2, 3}, .usage = {.prompt_tokens = 5}};
  const wire::TextDelta text{.id = ReqId{8}, .text = "grüße", .finish = wire::Finish{}};
  out.chunks.push_back({.id = ReqId{7}, .seq = seq, .body = tokens});
  if (seq == 0) out.chunks.back().opening = wire::Opening{.terminals = {"text"}, .timeout_ms = 9};
  out.chunks.push_back({.id = ReqId{8}, .seq = seq + 1, .body = text});
  out.chunks.push_back({.id = ReqId{9}, .body = wire::Failure{StatusCode::kTooLarge, "no"}});
  return out;
}
uint64_t seq_of(const wire::Message& message) { return std::get<wire::ChunkBatch>(message).chunks.at(0).seq; }
uint32_t sender_of(const wire::Message& message) { return std::get<wire::ChunkBatch>(message).from.replica; }

class InprocMailbox : public ::testing::Test {
 protected:
  std::unique_ptr<Inbox> inbox() { return std::move(bind_inbox(zmq_, kEndpoint)).value(); }
  std::shared_ptr<Outbox> outbox(BeforeConnected policy = BeforeConnected::kRefuse) {
    return std::move(connect_outbox(zmq_, kEndpoint, policy)).value();
  }

  ZmqContext zmq_;
};

TEST_F(InprocMailbox, TheContentsAreThoseOfTheEncodedMessage) {
  const auto in = inbox();
  wire::Message sent = batch(0, 0), same = batch(0, 0);
  const Result<std::string> frame = wire::encode(same);
  ASSERT_TRUE(frame.ok()) << frame.status().message();
  ASSERT_TRUE(outbox()->send(sent).ok());
  std::optional<wire::Message> got = in->receive(0);
  ASSERT_TRUE(got.has_value());
  EXPECT_EQ(wire::encode(*got).value(), *frame);
  wire::Message decoded = wire::decode(*frame).value();
  EXPECT_EQ(wire::encode(decoded).value(), *frame);
}

TEST_F(InprocMailbox, NothingIsCopied) {
  const auto in = inbox();
  wire::Message sent = batch(0, 1);
  const wire::Chunk* chunks = std::get<wire::ChunkBatch>(sent).chunks.data();
  ASSERT_TRUE(outbox()->send(sent).ok());
  EXPECT_EQ(std::get<wire::ChunkBatch>(*in->receive(0)).chunks.data(), chunks);
}

TEST_F(InprocMailbox, ARefusedMessageIsUntouched) {
  const auto out = outbox();
  wire::Message kept = batch(0, 1);
  EXPECT_EQ(out->send(kept).code(), StatusCode::kUnavailable);  // no receiver yet
  auto in = inbox();
  EXPECT_EQ(bind_inbox(zmq_, kEndpoint).status().code(), StatusCode::kConflict);
  for (uint64_t seq = 0; seq < kMailboxCapacity; ++seq) {
    wire::Message message = batch(0, seq);
    ASSERT_TRUE(out->send(message).ok());
  }
  EXPECT_EQ(out->send(kept).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(seq_of(*in->receive(0)), 0u);
  in.reset();
  EXPECT_EQ(out->send(kept).code(), StatusCode::kUnavailable);
  EXPECT_EQ(std::get<wire::ChunkBatch>(kept).chunks.size(), 3u);
  // The next receiver of that name gets what is sent to it, and nothing that was sent to the one before.
  in = inbox();
  ASSERT_TRUE(out->send(kept).ok());
  EXPECT_EQ(seq_of(*in->receive(0)), 1u);
  EXPECT_FALSE(in->receive(0).has_value());
}

TEST_F(InprocMailbox, KeepsForAReceiverThatComesLater) {
  wire::Message early = batch(0, 1), late = batch(0, 2);
  const auto out = outbox(BeforeConnected::kKeep);
  ASSERT_TRUE(out->send(early).ok());
  const auto in = inbox();
  ASSERT_TRUE(out->send(late).ok());
  EXPECT_EQ(seq_of(*in->receive(0)), 1u);
  EXPECT_EQ(seq_of(*in->receive(0)), 2u);
}

TEST_F(InprocMailbox, EachSenderIsFirstInFirstOutBetweenThreads) {
  constexpr uint64_t kMessages = 20'000;  // of each sender: more than the queue holds
  const auto in = inbox();
  const auto out = outbox();
  const auto send_all = [&out](uint32_t sender) {
    for (uint64_t seq = 0; seq < kMessages; ++seq) {
      wire::Message message = batch(sender, seq);
      while (!out->send(message).ok()) std::this_thread::yield();
    }
  };
  std::thread first(send_all, 0), second(send_all, 1);
  std::array<uint64_t, 2> next{};
  while (next[0] + next[1] < 2 * kMessages) {
    const std::optional<wire::Message> message = in->receive(120'000);
    ASSERT_TRUE(message.has_value());
    ASSERT_EQ(seq_of(*message), next.at(sender_of(*message))++);
  }
  first.join();
  second.join();
  EXPECT_FALSE(in->receive(0).has_value());
}

}  // namespace
}  // namespace millrace
