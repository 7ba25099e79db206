// The connections of a TCP relay whose loop cannot wait for them, as where the epoll watches of a user are used up.
// The loop of this test was never opened.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "relay/tcp/connection_set.h"

namespace millrace::tcp {
namespace {

struct NoUser : LinkUser {
  Status on_frame(Link&, const Header&, std::span<const std::byte>) override { return ok_status(); }
  void on_ready(Link&) override {}
  bool busy(const Link&) const override { return false; }
  void on_lost(Link&, const Status&) override {}
};

TEST(TcpConnectionSet, AConnectionThatCannotBeWaitedForIsClosed) {
  Loop loop;
  NoUser user;
  ConnectionSet set(loop, {user, {}, 1000, 1000, true, true}, [] {});
  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  EXPECT_EQ(set.adopt(pair[0], Phase::kConnecting).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(::fcntl(pair[0], F_GETFD), -1) << "it is still open";
  EXPECT_EQ(set.size(), 0u);
  ::close(pair[1]);
}

}  // namespace
}  // namespace millrace::tcp
