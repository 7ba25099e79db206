// EventSocket: what a listener gets, what a slow one loses, and where nothing is published.
#include "control/event_socket.h"

#include <gtest/gtest.h>
#include <unistd.h>
#include <zmq.h>

#include <chrono>
#include <vector>

#include "base/log.h"
#include "control/testing/sockets.h"

namespace millrace {
namespace {

constexpr int kPatienceMs = 120'000;

class Listener {
 public:
  Listener(ZmqContext& context, const std::string& endpoint, int high_water = 1000)
      : socket_(zmq_socket(context.handle(), ZMQ_SUB)) {
    const int linger = 0;
    set_timeout_ms(kPatienceMs);
    zmq_setsockopt(socket_, ZMQ_LINGER, &linger, sizeof linger);
    zmq_setsockopt(socket_, ZMQ_RCVHWM, &high_water, sizeof high_water);
    zmq_setsockopt(socket_, ZMQ_SUBSCRIBE, "", 0);
    EXPECT_EQ(zmq_connect(socket_, endpoint.c_str()), 0);
  }
  ~Listener() { zmq_close(socket_); }
  void set_timeout_ms(int timeout_ms) { zmq_setsockopt(socket_, ZMQ_RCVTIMEO, &timeout_ms, sizeof timeout_ms); }
  // The frames of one message; empty where none comes in time.
  std::vector<std::string> receive() {
    std::vector<std::string> out;
    int more = 1;
    while (more != 0) {
      zmq_msg_t frame;
      zmq_msg_init(&frame);
      if (zmq_msg_recv(&frame, socket_, 0) < 0) return {};
      out.emplace_back(static_cast<const char*>(zmq_msg_data(&frame)), zmq_msg_size(&frame));
      more = zmq_msg_more(&frame);
      zmq_msg_close(&frame);
    }
    return out;
  }

 private:
  void* socket_;
};

// A subscription takes a while to arrive, and what is published before has no listener. Publishes until the listener
// has got one, and takes the rest of it; the number of the next message.
uint64_t publish_until_received(EventSocket& socket, Listener& listener) {
  constexpr int kTries = 2000;
  listener.set_timeout_ms(50);
  for (int i = 0; i < kTries; ++i) {
    socket.publish("probe", "");
    if (!listener.receive().empty()) break;
  }
  listener.set_timeout_ms(kPatienceMs);
  socket.publish("last probe", "");
  while (true) {
    const std::vector<std::string> frames = listener.receive();
    if (frames.empty()) ADD_FAILURE() << "the listener receives nothing";
    if (frames.empty() || frames[0] == "last probe") return socket.sequence();
  }
}

std::string big_endian(uint64_t n) {
  std::string out;
  for (int shift = 56; shift >= 0; shift -= 8) out.push_back(static_cast<char>(n >> shift));
  return out;
}

std::string free_endpoint() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = testing_control::loopback(0);
  socklen_t size = sizeof address;
  EXPECT_EQ(::bind(fd, reinterpret_cast<const sockaddr*>(&address), size), 0);
  EXPECT_EQ(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  ::close(fd);
  return "tcp://127.0.0.1:" + std::to_string(ntohs(address.sin_port));
}

class EventSocketTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { log_init("test", LogLevel::kError); }
  static std::string endpoint() {
    return "ipc://" + ::testing::TempDir() + "events-" + std::to_string(::getpid()) + ".sock";
  }
  ZmqContext context_;
};

TEST_F(EventSocketTest, AMessageIsTopicSequenceAndPayload) {
  auto socket = EventSocket::bind(context_, endpoint(), false);
  ASSERT_TRUE(socket.ok()) << socket.status().to_string();
  Listener listener(context_, endpoint());
  const uint64_t next = publish_until_received(**socket, listener);
  (*socket)->publish("kv", "first");
  (*socket)->skip();
  (*socket)->publish("kv", std::string("se\0cond", 7));
  EXPECT_EQ(listener.receive(), (std::vector<std::string>{"kv", big_endian(next), "first"}));
  EXPECT_EQ(listener.receive(), (std::vector<std::string>{"kv", big_endian(next + 2), std::string("se\0cond", 7)}));
  EXPECT_EQ((*socket)->sequence(), next + 3);
}

// Its listeners connect again by themselves, and must see that what they knew is of another process.
TEST_F(EventSocketTest, ARestartIsAGapInTheNumbers) {
  auto socket = EventSocket::bind(context_, endpoint(), false);
  ASSERT_TRUE(socket.ok());
  (*socket)->publish("kv", "the last one");
  const uint64_t next = (*socket)->sequence();
  socket->reset();
  socket = EventSocket::bind(context_, endpoint(), false);
  ASSERT_TRUE(socket.ok()) << socket.status().to_string();
  EXPECT_GT((*socket)->sequence(), next);
}

TEST_F(EventSocketTest, AListenerThatReadsNothingDoesNotHoldUpThePublisher) {
  auto socket = EventSocket::bind(context_, endpoint(), false);
  ASSERT_TRUE(socket.ok());
  Listener slow(context_, endpoint(), 1);
  publish_until_received(**socket, slow);
  const auto begin = std::chrono::steady_clock::now();
  const std::string payload(1000, 'x');
  for (int i = 0; i < 5 * kEventHighWater; ++i) (*socket)->publish("kv", payload);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(120));
  EXPECT_FALSE(slow.receive().empty());
}

TEST_F(EventSocketTest, TheSameEndpointTwiceIsAnError) {
  constexpr int kTries = 50;  // a port that was free a moment ago may be taken
  for (int i = 0; i < kTries; ++i) {
    const std::string wanted = free_endpoint();
    const auto first = EventSocket::bind(context_, wanted, false);
    if (!first.ok()) continue;
    EXPECT_EQ(EventSocket::bind(context_, wanted, false).status().code(), StatusCode::kUnavailable);
    return;
  }
  FAIL() << "no free port of 127.0.0.1 in " << kTries << " tries";
}

TEST(EventEndpoint, OnlyLoopbackUnlessConfiguredOtherwise) {
  for (const char* good : {"tcp://127.0.0.1:5557", "tcp://localhost:1", "tcp://[::1]:65535", "ipc:///tmp/x"}) {
    EXPECT_TRUE(check_event_endpoint(good, false).ok()) << good;
  }
  for (const char* wide :
       {"tcp://0.0.0.0:5557", "tcp://*:5557", "tcp://10.0.0.1:5557", "tcp://127.0.0.1.evil.example:1"}) {
    const Status status = check_event_endpoint(wide, false);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << wide;
    EXPECT_NE(status.message().find(wide), std::string::npos);
    EXPECT_TRUE(check_event_endpoint(wide, true).ok()) << wide;
  }
  for (const char* bad : {"", "5557", "tcp://127.0.0.1", "tcp://127.0.0.1:0", "tcp://127.0.0.1:65536",
                          "tcp://127.0.0.1:x", "tcp://:5", "ipc://", "pgm://eth0;239.0.0.1:5557", "inproc://x"}) {
    EXPECT_EQ(check_event_endpoint(bad, true).code(), StatusCode::kInvalidArgument) << bad;
  }
  EXPECT_FALSE(check_event_endpoint("ipc:///" + std::string(200, 'x'), true).ok());
}

TEST(EventEndpoint, EachOfSeveralHasADistinctOne) {
  EXPECT_EQ(nth_endpoint("tcp://127.0.0.1:5557", 0), "tcp://127.0.0.1:5557");
  EXPECT_EQ(nth_endpoint("tcp://127.0.0.1:5557", 3), "tcp://127.0.0.1:5560");
  EXPECT_EQ(nth_endpoint("ipc:///tmp/events", 1), "ipc:///tmp/events-1");
}

}  // namespace
}  // namespace millrace
