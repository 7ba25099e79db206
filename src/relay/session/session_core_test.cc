// Core over a channel that is played here: when a loop counts as paused.
#include <gtest/gtest.h>

#include "relay/session/core.h"

namespace millrace::session {
namespace {

struct PlayedChannel : Channel {
  const Traits& traits() const override { return traits_; }
  RelayCapabilities capabilities() const override { return {.name = "played"}; }
  std::string address() const override { return "played"; }
  Result<std::string> store(Put&) override { return std::string(); }
  Result<Target> target_of(const Descriptor&) const override { return Target(); }
  Result<Link*> connect(const Target&) override { return Status(StatusCode::kUnavailable, "no peer"); }
  int64_t check_time(int64_t) override { return due_ms; }
  void compensate_pause(int64_t) override { ++pauses; }
  bool shut_down() override { return true; }

  Traits traits_;
  int64_t due_ms = INT64_MAX;
  int pauses = 0;
};

class SessionCore : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(core.loop.open().ok());
    core.channel = std::make_unique<PlayedChannel>();
    channel = static_cast<PlayedChannel*>(core.channel.get());
  }

  static constexpr int kSilentMs = 2'000;
  Core core{RelayOptions{.silent_ms = kSilentMs}};
  PlayedChannel* channel = nullptr;
};

TEST_F(SessionCore, ALateLoopWasPausedAndAnIdleOneWasNot) {
  int64_t now_ms = 1'000'000;
  (void)core.turn_end(now_ms);
  EXPECT_EQ(channel->pauses, 0) << "the first turn";
  channel->due_ms = now_ms + 20'000;  // an idle connection
  (void)core.turn_end(now_ms += 20);
  (void)core.turn_end(now_ms = channel->due_ms + 5);
  EXPECT_EQ(channel->pauses, 0) << "it had nothing to do";
  channel->due_ms = now_ms + kSilentMs / 4;  // a PING
  (void)core.turn_end(now_ms += 20);
  (void)core.turn_end(now_ms += 60'000);
  EXPECT_EQ(channel->pauses, 1);
}

}  // namespace
}  // namespace millrace::session
