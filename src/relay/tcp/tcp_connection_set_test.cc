// The connections of one side of a TCP relay: a loop that cannot wait for them, and pauses of this process.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "relay/tcp/connection_set.h"

namespace millrace::tcp {
namespace {

struct NoUser : LinkUser {
  explicit NoUser(bool expecting_in = false) : expecting(expecting_in) {}
  Status on_frame(Link&, const Header&, std::span<const std::byte>) override { return ok_status(); }
  void on_ready(Link&) override {}
  bool busy(const Link&) const override { return expecting; }
  void on_lost(Link&, const Status&) override {}
  const bool expecting;
};

// As where the epoll watches of a user are used up.
TEST(TcpConnectionSet, AConnectionThatCannotBeWaitedForIsClosed) {
  Loop loop;  // was never opened
  NoUser user;
  ConnectionSet set(loop, {user, {}, 1000, 1000, true, true}, [] {});
  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  EXPECT_EQ(set.adopt(pair[0], Phase::kConnecting).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(::fcntl(pair[0], F_GETFD), -1) << "it is still open";
  EXPECT_EQ(set.size(), 0u);
  ::close(pair[1]);
}

// A writer whose reader is expected to send, and has sent half a frame.
TEST(TcpConnectionSet, SilenceCountsAnewAfterAPause) {
  Loop loop;
  ASSERT_TRUE(loop.open().ok());
  NoUser user(true);
  const ConnectionConfig config{user, {}, 1000, 1000, false, true};
  ConnectionSet set(loop, config, [] {});
  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
  const Result<Connection*> connection = set.adopt(pair[0], Phase::kReady);
  ASSERT_TRUE(connection.ok()) << connection.status().to_string();
  const int64_t now_ms = monotonic_ms();
  ASSERT_EQ(::write(pair[1], "half", 4), 4);
  ASSERT_TRUE((*connection)->pump_in(now_ms).ok());
  const int64_t continued_ms = now_ms + 60'000;
  set.compensate_pause(continued_ms);
  (void)set.check_time(continued_ms + 999);
  EXPECT_EQ(set.size(), 1u);
  (void)set.check_time(continued_ms + 1000);
  EXPECT_EQ(set.size(), 0u);
  ::close(pair[1]);
}

}  // namespace
}  // namespace millrace::tcp
