// Answers that no client waits for: a server that drains waits for them, one that stops ends them.
#include "http/detached.h"

#include <gtest/gtest.h>

#include "base/log.h"
#include "http/server.h"

namespace millrace::http {
namespace {

using namespace std::chrono_literals;

class DetachedTest : public ::testing::Test {
 protected:
  // Before any thread, as in server_test.cc.
  static void SetUpTestSuite() { log_init("test", LogLevel::kWarning); }
  void SetUp() override { ASSERT_TRUE(server_.start().ok()); }

  Server server_{ServerOptions{}};
  int gone_ = 0;  // stop() waits for the thread that counts
};

TEST_F(DetachedTest, DrainWaitsForWhatHasNotEnded) {
  const ResponderPtr first = server_.detached_responder({.request_id = "first"});
  const ResponderPtr second = server_.detached_responder({.request_id = "second"});
  EXPECT_EQ(first->label().request_id, "first");
  EXPECT_FALSE(server_.drain(1ms));
  EXPECT_TRUE(first->send({.body = "for no client"}));
  EXPECT_FALSE(server_.drain(1ms));
  EXPECT_TRUE(second->send({.body = "nor this one"}));
  EXPECT_TRUE(server_.drain(60s));
}

TEST_F(DetachedTest, OneThatIsForgottenHoldsUpNothing) {
  server_.detached_responder({}).reset();
  EXPECT_TRUE(server_.drain(60s));
}

TEST_F(DetachedTest, StopEndsWhatRunsAndNothingElse) {
  const ResponderPtr running = server_.detached_responder({}), ended = server_.detached_responder({});
  for (const ResponderPtr& each : {running, ended}) each->on_disconnect([this] { ++gone_; });
  EXPECT_TRUE(ended->send({.body = "done"}));
  server_.stop();
  EXPECT_EQ(gone_, 1);
  EXPECT_FALSE(running->send({.body = "too late"}));
}

}  // namespace
}  // namespace millrace::http
