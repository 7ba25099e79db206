#include "pipeline/aborts.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

constexpr std::size_t kNone = Placement::kNone;

class AbortsTest : public ::testing::Test {
 protected:
  std::vector<std::size_t> asked() { return std::exchange(asked_, {}); }

  std::vector<std::size_t> asked_;
  Aborts aborts_{2, [this](std::size_t slot, ReqId) { asked_.push_back(slot); }};
};

TEST_F(AbortsTest, EachReplicaAcknowledgesOrIsLost) {
  aborts_.open(ReqId{1}, {0, kNone, 3, 4}, {0, 3, 4}, 0);
  EXPECT_EQ(asked(), (std::vector<std::size_t>{0, 3, 4}));
  aborts_.on_ack(ReqId{1}, 3);
  aborts_.on_ack(ReqId{1}, 3);  // twice counts once
  aborts_.on_ack(ReqId{2}, 0);  // of no open abort
  EXPECT_EQ(aborts_.awaited_acks(), 2u);
  EXPECT_TRUE(aborts_.tick(kAbortRetryMs - 1).empty());
  EXPECT_TRUE(asked().empty());
  aborts_.tick(kAbortRetryMs);
  EXPECT_EQ(asked(), (std::vector<std::size_t>{0, 4}));
  aborts_.on_lost(4);
  EXPECT_TRUE(aborts_.is_open(ReqId{1}));
  aborts_.on_ack(ReqId{1}, 0);
  EXPECT_FALSE(aborts_.is_open(ReqId{1}));
}

TEST_F(AbortsTest, AReplicaThatJoinsIsAskedWhereTheRouteHasIt) {
  aborts_.open(ReqId{1}, {0, 2}, {0}, 0);
  aborts_.on_joined(1);
  EXPECT_EQ(aborts_.awaited_acks(), 1u);
  aborts_.on_joined(2);
  aborts_.on_joined(2);
  EXPECT_EQ(aborts_.awaited_acks(), 2u);
  aborts_.on_ack(ReqId{1}, 0);
  asked();
  aborts_.tick(kAbortRetryMs);
  EXPECT_EQ(asked(), (std::vector<std::size_t>{2}));
}

TEST_F(AbortsTest, ASilentReplicaIsAskedSoOftenAndGivenUp) {
  aborts_.open(ReqId{1}, {5}, {5}, 0);
  int64_t now_ms = 0;
  for (int i = 1; i < kMaxAbortTries; ++i) EXPECT_TRUE(aborts_.tick(now_ms += kAbortRetryMs).empty());
  EXPECT_EQ(asked().size(), static_cast<std::size_t>(kMaxAbortTries));
  const auto given_up = aborts_.tick(now_ms += kAbortRetryMs);
  ASSERT_EQ(given_up.size(), 1u);
  EXPECT_EQ(given_up[0].id, ReqId{1});
  EXPECT_EQ(given_up[0].slot, 5u);
  EXPECT_EQ(aborts_.given_up(), 1u);
  EXPECT_EQ(aborts_.size(), 0u);
  EXPECT_TRUE(asked().empty());
}

TEST_F(AbortsTest, TheyAreBoundedAndOneThatNoneWasAskedForIsNone) {
  aborts_.open(ReqId{1}, {0}, {}, 0);
  EXPECT_EQ(aborts_.size(), 0u);
  aborts_.open(ReqId{1}, {0}, {0}, 0);
  EXPECT_TRUE(aborts_.check_capacity().ok());
  aborts_.open(ReqId{2}, {0}, {0}, 0);
  EXPECT_EQ(aborts_.check_capacity().code(), StatusCode::kResourceExhausted);
  aborts_.on_lost(0);
  EXPECT_TRUE(aborts_.check_capacity().ok());
}

}  // namespace
}  // namespace millrace
