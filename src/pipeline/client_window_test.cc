#include "pipeline/client_window.h"

#include <gtest/gtest.h>

#include "wire/limits.h"

namespace millrace {
namespace {

class ClientWindowTest : public ::testing::Test {
 protected:
  // "slot:request=count" of each acknowledgement that leaves now; "?" behind one that is repeated.
  std::vector<std::string> sent() {
    window_.send();
    return std::exchange(sent_, {});
  }

  bool full_ = false;
  std::vector<std::string> sent_;
  ClientWindow window_{[this](std::size_t slot, std::vector<wire::Ack> acks) {
    if (full_) return Status(StatusCode::kResourceExhausted, "full");
    for (const wire::Ack& ack : acks)
      sent_.push_back(fmt::format("{}:{}={}{}", slot, ack.id.value, ack.count, ack.repeated ? "?" : ""));
    return ok_status();
  }};
};

using Acks = std::vector<std::string>;

TEST_F(ClientWindowTest, HalfAWindowIsAcknowledgedAtOnce) {
  window_.on_taken(ReqId{1}, 3, wire::kAckEveryChunks - 1, 0, 0);
  window_.on_taken(ReqId{2}, 3, 1, wire::kAckEveryClientBytes, 0);
  EXPECT_EQ(sent(), Acks{"3:2=1"});
  window_.on_taken(ReqId{1}, 3, 1, 0, 0);
  EXPECT_EQ(sent(), Acks{fmt::format("3:1={}", wire::kAckEveryChunks)});
}

TEST_F(ClientWindowTest, LessWaitsForTheRoundAndIsRepeatedEverMoreRarely) {
  window_.tick(0);
  window_.on_taken(ReqId{1}, 3, 1, 0, 0);
  EXPECT_EQ(sent(), Acks{});
  window_.tick(kClientAckMs);
  EXPECT_EQ(sent(), Acks{"3:1=1"});
  std::vector<int64_t> repeated_ms;
  for (int64_t now_ms = kClientAckMs; now_ms <= 4000; now_ms += kClientAckMs) {
    window_.tick(now_ms);
    const Acks acks = sent();
    if (acks.empty()) continue;
    EXPECT_EQ(acks, Acks{"3:1=1?"});
    repeated_ms.push_back(now_ms - kClientAckMs);
  }
  EXPECT_EQ(repeated_ms, (std::vector<int64_t>{kAckRepeatMs, 3 * kAckRepeatMs, 7 * kAckRepeatMs}));
  window_.close(ReqId{1}, 3);
  window_.tick(1'000'000);
  EXPECT_EQ(sent(), Acks{});
}

TEST_F(ClientWindowTest, AFullOutboxGetsTheNewestCountLater) {
  full_ = true;
  window_.on_taken(ReqId{1}, 3, wire::kAckEveryChunks, 0, 0);
  window_.on_taken(ReqId{2}, 4, wire::kAckEveryChunks, 0, 0);
  window_.on_taken(ReqId{3}, 5, wire::kAckEveryChunks, 0, 0);
  EXPECT_EQ(sent(), Acks{});
  window_.on_taken(ReqId{1}, 3, wire::kAckEveryChunks, 0, 0);
  window_.erase(ReqId{2});
  window_.on_lost(5);
  full_ = false;
  EXPECT_EQ(sent(), Acks{fmt::format("3:1={}", 2 * wire::kAckEveryChunks)});
  EXPECT_EQ(sent(), Acks{});
}

}  // namespace
}  // namespace millrace
