// The door of a stage over several hosts: what is kept, what is said to the leader, and when.
#include "app/text_link.h"

#include <gtest/gtest.h>

#include <thread>

#include "stages/stage.h"

namespace millrace {
namespace {

// Takes everything, until told otherwise.
class FakeOutbox : public Outbox {
 public:
  Status send(wire::Message& message) override {
    if (refuse || gone) return Status(StatusCode::kUnavailable, "not now");
    taken.push_back(std::move(message));
    return ok_status();
  }
  bool lost() const override { return gone; }

  std::vector<wire::Message> taken;
  bool refuse = false, gone = false;
};

wire::Message tokens(uint32_t source) { return wire::TokenBatch{.source = source}; }
wire::Message beat(uint64_t steps, wire::StageState state = wire::StageState::kReady) {
  return wire::StageStatus{.stage = "scheduler", .state = state, .steps = steps};
}

class TextLinkTest : public ::testing::Test {
 protected:
  std::shared_ptr<FakeOutbox> leader_ = std::make_shared<FakeOutbox>(), next_ = std::make_shared<FakeOutbox>();
  TextLink link_{"scheduler", leader_};
};

TEST_F(TextLinkTest, HeartbeatsGoToBothAndTokensToTheNext) {
  link_.aim(next_);
  wire::Message one = beat(1), two = tokens(2);
  EXPECT_TRUE(link_.send(one).ok());
  EXPECT_TRUE(link_.send(two).ok());
  EXPECT_EQ(leader_->taken.size(), 1u);
  EXPECT_EQ(next_->taken.size(), 2u);
}

TEST_F(TextLinkTest, WithoutANextStageTokensStayAndHeartbeatsDoNotWait) {
  wire::Message one = beat(1), two = tokens(2);
  EXPECT_TRUE(link_.send(one).ok());
  EXPECT_EQ(link_.send(two).code(), StatusCode::kUnavailable);
  EXPECT_EQ(std::get<wire::TokenBatch>(two).source, 2u);
  EXPECT_EQ(leader_->taken.size(), 1u);
  link_.aim(next_);
  EXPECT_TRUE(link_.send(two).ok());
  next_->gone = true;
  EXPECT_TRUE(link_.lost());
  wire::Message three = beat(3, wire::StageState::kStalled), four = tokens(4);
  EXPECT_TRUE(link_.send(three).ok());
  EXPECT_FALSE(link_.send(four).ok());
  EXPECT_EQ(leader_->taken.size(), 2u);
  link_.aim(nullptr);
  EXPECT_FALSE(link_.lost());
}

// Two schedulers' heartbeats pass through the detokenizer's door, just before its own.
TEST_F(TextLinkTest, HeartbeatsOfOthersAreNotItsOwn) {
  link_.aim(next_);
  wire::Message other = wire::StageStatus{.stage = "detokenizer", .state = wire::StageState::kReady}, own = beat(1);
  EXPECT_TRUE(link_.send(other).ok());
  EXPECT_TRUE(link_.send(own).ok());
  ASSERT_EQ(leader_->taken.size(), 1u);
  EXPECT_EQ(std::get<wire::StageStatus>(leader_->taken[0]).stage, "scheduler");
  EXPECT_EQ(next_->taken.size(), 2u);
}

// In order: what the next stage has no room for now keeps its place, a heartbeat too.
TEST_F(TextLinkTest, ANextStageThatIsFullRefusesHeartbeatsToo) {
  link_.aim(next_);
  next_->refuse = true;
  wire::Message one = beat(1);
  EXPECT_FALSE(link_.send(one).ok());
  EXPECT_FALSE(link_.send(one).ok());
  EXPECT_EQ(leader_->taken.size(), 1u);  // once, however often it is tried
}

TEST_F(TextLinkTest, TheLastHeartbeatIsSaidAgainForAStageThatLives) {
  wire::Message one = beat(7), two = tokens(2);
  EXPECT_TRUE(link_.send(one).ok());
  link_.repeat_beat();
  EXPECT_EQ(leader_->taken.size(), 1u);  // it was just said
  const int64_t until_ms = monotonic_ms() + 20'000;
  while (leader_->taken.size() < 2 && monotonic_ms() < until_ms) {
    EXPECT_FALSE(link_.send(two).ok());  // it tries on
    link_.repeat_beat();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  ASSERT_EQ(leader_->taken.size(), 2u);
  EXPECT_EQ(std::get<wire::StageStatus>(leader_->taken[1]).steps, 7u);
  // One that says nothing any more is not spoken for.
  std::this_thread::sleep_for(std::chrono::milliseconds(kStageAliveMs + 100));
  link_.repeat_beat();
  EXPECT_EQ(leader_->taken.size(), 2u);
}

TEST_F(TextLinkTest, OnlyAHeartbeatThatLeftCounts) {
  const int64_t before = link_.beat_left_ms();
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  leader_->refuse = true;
  wire::Message one = beat(1), two = beat(2, wire::StageState::kStalled);
  EXPECT_TRUE(link_.send(one).ok());
  EXPECT_EQ(link_.beat_left_ms(), before);
  leader_->refuse = false;
  EXPECT_TRUE(link_.send(two).ok());
  EXPECT_GT(link_.beat_left_ms(), before);
}

}  // namespace
}  // namespace millrace
