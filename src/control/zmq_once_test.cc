// Outboxes of one connection: what arrives has no gap, and the end of the connection is known.
#include <gtest/gtest.h>

#include "base/log.h"
#include "control/testing/sockets.h"
#include "control/zmq_mailbox.h"

namespace millrace {
namespace {

using namespace testing_control;

constexpr OutboxOptions kOnce{.policy = BeforeConnected::kKeep, .once = true};

class ZmqOnce : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { log_init("test", LogLevel::kError); }

  std::unique_ptr<Inbox> inbox(const std::string& endpoint) {
    auto made = bind_inbox(zmq_, endpoint);
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    return std::move(made).value();
  }
  std::shared_ptr<Outbox> once(const std::string& endpoint) {
    auto made = connect_outbox(other_, endpoint, kOnce);
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    return std::move(made).value();
  }
  static void expect_refused(Outbox& out) {
    wire::Message message = numbered(13);
    const Status status = out.send(message);
    EXPECT_EQ(status.code(), StatusCode::kUnavailable);
    EXPECT_NE(status.message().find("lost"), std::string::npos) << status.message();
    EXPECT_EQ(number_of(message), 13u);
  }

  ZmqContext zmq_, other_;  // before the sockets, which they outlive
};

TEST_F(ZmqOnce, ASuccessorAtTheSameAddressGetsNothing) {
  auto in = inbox("tcp://127.0.0.1:0");
  const std::string endpoint = in->endpoint();
  auto out = once(endpoint);
  for (uint64_t id = 1; id <= 500; ++id) ASSERT_TRUE(send(*out, id));
  for (uint64_t id = 1; id <= 500; ++id) ASSERT_EQ(next(*in), id);
  EXPECT_FALSE(out->lost());
  in.reset();
  ASSERT_TRUE(eventually([&] { return out->lost(); }));
  auto successor = inbox(endpoint);
  expect_refused(*out);
  EXPECT_FALSE(next(*successor, 600).has_value());
  auto fresh = once(endpoint);
  ASSERT_TRUE(send(*fresh, 7));
  EXPECT_EQ(next(*successor), 7u);
}

TEST_F(ZmqOnce, NobodyThereIsALossToo) {
  auto in = inbox("tcp://127.0.0.1:0");
  const std::string endpoint = in->endpoint();
  in.reset();
  auto out = once(endpoint);
  ASSERT_TRUE(eventually([&] { return out->lost(); }));
  expect_refused(*out);
}

TEST_F(ZmqOnce, APeerThatVanishesIsLost) {
  auto in = inbox("tcp://127.0.0.1:0");
  Proxy proxy(port_of(in->endpoint()));
  auto out = once(fmt::format("tcp://127.0.0.1:{}", proxy.port()));
  ASSERT_TRUE(send(*out, 1));
  ASSERT_EQ(next(*in), 1u);
  proxy.hole();
  ASSERT_TRUE(eventually([&] { return out->lost(); }));
  expect_refused(*out);
}

TEST_F(ZmqOnce, OthersAreNeverLost) {
  auto in = inbox("tcp://127.0.0.1:0");
  auto made = connect_outbox(other_, in->endpoint(), BeforeConnected::kRefuse);
  ASSERT_TRUE(made.ok());
  ASSERT_TRUE(send(**made, 1));
  in.reset();
  ASSERT_TRUE(eventually([&] {
    wire::Message message = numbered(2);
    return !(*made)->send(message).ok();
  }));
  EXPECT_FALSE((*made)->lost());
}

}  // namespace
}  // namespace millrace
