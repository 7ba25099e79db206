// The mailbox between threads of one process: messages move, and a refused one stays with the sender.
#include <gtest/gtest.h>

#include <thread>

#include "control/mailbox.h"

namespace millrace {
namespace {

wire::Message request(uint64_t id) { return wire::Submit{.id = ReqId{id}, .terminals = {"a", "b", "c"}}; }

uint64_t id_of(const wire::Message& message) { return std::get<wire::Submit>(message).id.value; }

TEST(LocalMailbox, KeepsTheSequence) {
  LocalMailbox box = make_local_mailbox();
  for (uint64_t id = 1; id <= 5; ++id) {
    wire::Message message = request(id);
    ASSERT_TRUE(box.outbox->send(message).ok());
  }
  for (uint64_t id = 1; id <= 5; ++id) {
    const auto message = box.inbox->receive(0);
    ASSERT_TRUE(message.has_value());
    EXPECT_EQ(id_of(*message), id);
    EXPECT_EQ(std::get<wire::Submit>(*message).terminals, (std::vector<std::string>{"a", "b", "c"}));
  }
  EXPECT_FALSE(box.inbox->receive(0).has_value());
}

TEST(LocalMailbox, FullMeansTryAgainAndNothingIsLost) {
  LocalMailbox box = make_local_mailbox();
  for (uint64_t id = 1; id <= kMailboxCapacity; ++id) {
    wire::Message message = request(id);
    ASSERT_TRUE(box.outbox->send(message).ok());
  }
  wire::Message kept = request(kMailboxCapacity + 1);
  EXPECT_EQ(box.outbox->send(kept).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(std::get<wire::Submit>(kept).terminals.size(), 3u);
  EXPECT_EQ(id_of(*box.inbox->receive(0)), 1u);
  EXPECT_TRUE(box.outbox->send(kept).ok());
  for (uint64_t id = 2; id <= kMailboxCapacity + 1; ++id) ASSERT_EQ(id_of(*box.inbox->receive(0)), id);
}

TEST(LocalMailbox, NoReceiverIsReportedAtOnce) {
  LocalMailbox box = make_local_mailbox();
  box.inbox.reset();
  wire::Message kept = request(7);
  EXPECT_EQ(box.outbox->send(kept).code(), StatusCode::kUnavailable);
  EXPECT_EQ(std::get<wire::Submit>(kept).terminals.size(), 3u);
}

TEST(LocalMailbox, AWaitingReceiverIsWoken) {
  LocalMailbox box = make_local_mailbox();
  std::thread sender([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    wire::Message message = request(9);
    EXPECT_TRUE(box.outbox->send(message).ok());
  });
  const auto message = box.inbox->receive(30000);
  sender.join();
  ASSERT_TRUE(message.has_value());
  EXPECT_EQ(id_of(*message), 9u);
}

}  // namespace
}  // namespace millrace
