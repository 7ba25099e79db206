// Mailboxes over ZeroMQ against friendly and hostile peers: order, policies, limits, restarts.
#include "control/zmq_mailbox.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <zmq.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <random>
#include <thread>

#include "base/log.h"
#include "control/counters.h"
#include "wire/codec.h"
#include "wire/limits.h"

namespace millrace {
namespace {

using Clock = std::chrono::steady_clock;

wire::Message numbered(uint64_t id) { return wire::AbortRequest{ReqId{id}}; }
uint64_t number_of(const wire::Message& message) { return std::get<wire::AbortRequest>(message).id.value; }

uint64_t bad_frames() {
  const ControlCounters now = control_counters();
  return std::accumulate(now.bad_frames.begin(), now.bad_frames.end(), uint64_t{0});
}

// Until it succeeds, for two minutes at most.
template <typename Try>
bool eventually(Try attempt) {
  const auto end = Clock::now() + std::chrono::seconds(120);
  while (!attempt()) {
    if (Clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

class ZmqMailbox : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { log_init("test", LogLevel::kError); }
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "mailbox-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path() const { return folder_ + "/box.sock"; }
  std::string endpoint() const { return "ipc://" + path(); }
  std::unique_ptr<Inbox> inbox() {
    auto made = bind_inbox(zmq_, endpoint());
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    return std::move(made).value();
  }
  std::shared_ptr<Outbox> outbox(BeforeConnected policy = BeforeConnected::kRefuse) {
    auto made = connect_outbox(zmq_, endpoint(), policy);
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    return std::move(made).value();
  }
  // With kRefuse the first sends fail until the two sockets have met.
  static bool send(Outbox& out, uint64_t id) {
    wire::Message message = numbered(id);
    return eventually([&] { return out.send(message).ok(); });
  }
  // The next good message; malformed frames on the way are not counted as an answer.
  static std::optional<uint64_t> next(Inbox& in, int timeout_ms = 120'000) {
    const auto end = Clock::now() + std::chrono::milliseconds(timeout_ms);
    do {
      if (auto message = in.receive(10)) return number_of(*message);
    } while (Clock::now() < end);
    return std::nullopt;
  }

  ZmqContext zmq_;  // before the sockets, which it outlives
  std::string folder_;
};

// A peer that speaks ZeroMQ but not our messages.
class RawPush {
 public:
  explicit RawPush(const std::string& endpoint) : context_(zmq_ctx_new()), socket_(zmq_socket(context_, ZMQ_PUSH)) {
    const int linger_ms = 1000;
    zmq_setsockopt(socket_, ZMQ_LINGER, &linger_ms, sizeof linger_ms);
    EXPECT_EQ(zmq_connect(socket_, endpoint.c_str()), 0);
  }
  ~RawPush() {
    zmq_close(socket_);
    zmq_ctx_term(context_);
  }
  void send(std::string_view frame) {
    EXPECT_EQ(zmq_send(socket_, frame.data(), frame.size(), 0), static_cast<int>(frame.size()));
  }

 private:
  void* context_;
  void* socket_;
};

TEST_F(ZmqMailbox, CompleteMessagesInSequence) {
  auto in = inbox();
  auto out = outbox();
  for (uint64_t id = 1; id <= 1000; ++id) ASSERT_TRUE(send(*out, id));
  for (uint64_t id = 1; id <= 1000; ++id) ASSERT_EQ(next(*in), id);
  wire::ChunkBatch batch{.from = {.session = 1, .stage = "a"}};
  batch.chunks.push_back({.body = wire::TextDelta{.accepted = true, .text = "h\xC3\xA9", .usage = {1, 2, 3}}});
  wire::Message message = batch;
  ASSERT_TRUE(out->send(message).ok());
  const auto back = in->receive(120'000);
  ASSERT_TRUE(back.has_value());
  const auto& delta = std::get<wire::TextDelta>(std::get<wire::ChunkBatch>(*back).chunks.at(0).body);
  EXPECT_EQ(delta.text, "h\xC3\xA9");
  EXPECT_TRUE(delta.accepted);
  EXPECT_EQ(delta.usage.cached_tokens, 3);
}

TEST_F(ZmqMailbox, ReceiveWaitsAsLongAsAsked) {
  auto in = inbox();
  const auto start = Clock::now();
  EXPECT_FALSE(in->receive(0).has_value());
  EXPECT_FALSE(in->receive(40).has_value());
  const auto waited = Clock::now() - start;
  EXPECT_GE(waited, std::chrono::milliseconds(39));
}

TEST_F(ZmqMailbox, RefusesWithoutAReceiverAndLeavesNothingStale) {
  auto out = outbox(BeforeConnected::kRefuse);
  for (uint64_t id = 1; id <= 3; ++id) {
    wire::Message message = numbered(id);
    EXPECT_FALSE(out->send(message).ok());
    EXPECT_EQ(number_of(message), id);
  }
  auto in = inbox();
  EXPECT_EQ(next(*in, 100), std::nullopt);
  ASSERT_TRUE(send(*out, 4));
  EXPECT_EQ(next(*in), 4u);
}

TEST_F(ZmqMailbox, KeepsForAReceiverThatComesLater) {
  auto out = outbox(BeforeConnected::kKeep);
  for (uint64_t id = 1; id <= 3; ++id) {
    wire::Message message = numbered(id);
    EXPECT_TRUE(out->send(message).ok());
  }
  auto in = inbox();
  for (uint64_t id = 1; id <= 3; ++id) EXPECT_EQ(next(*in), id);
}

TEST_F(ZmqMailbox, AFullReceiverIsReportedAndNothingIsLost) {
  auto in = inbox();
  auto out = outbox();
  ASSERT_TRUE(send(*out, 1));
  uint64_t accepted = 1;
  Status refused;
  // Frames move on to the receiver's side in the background: full is what stays full for a while.
  for (int tries = 0; tries < 50;) {
    wire::Message message = numbered(accepted + 1);
    refused = out->send(message);
    if (refused.ok()) {
      ++accepted;
      tries = 0;
      ASSERT_LE(accepted, 4u * kMailboxCapacity) << "the queue has no bound";
    } else {
      ASSERT_EQ(number_of(message), accepted + 1);
      ++tries;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted);
  EXPECT_GE(accepted, static_cast<uint64_t>(kMailboxCapacity));
  for (uint64_t id = 1; id <= accepted; ++id) ASSERT_EQ(next(*in), id);
  EXPECT_EQ(next(*in, 20), std::nullopt);
  ASSERT_TRUE(send(*out, accepted + 1));
  EXPECT_EQ(next(*in), accepted + 1);
}

TEST_F(ZmqMailbox, MalformedFramesAreCountedAndGoodOnesGoOn) {
  auto in = inbox();
  auto out = outbox();
  const std::string good = *wire::encode(numbered(77));
  const uint64_t before = bad_frames();
  uint64_t bad = 0;
  {
    RawPush peer(endpoint());
    for (std::size_t cut = 0; cut < good.size(); ++cut, ++bad) peer.send(good.substr(0, cut));
    peer.send(good + "x");
    peer.send(std::string(100'000, '\x92'));
    bad += 2;
    std::mt19937 random(1);
    for (int i = 0; i < 200; ++i, ++bad) {
      std::string noise(1 + random() % 300, '\0');
      for (char& byte : noise) byte = static_cast<char>(random());
      noise[0] = '\xC1';  // never used in msgpack: no noise is a message by chance
      peer.send(noise);
    }
    peer.send(good);
    EXPECT_EQ(next(*in), 77u);  // frames of one peer keep their order: all before it have been looked at
  }
  EXPECT_EQ(bad_frames() - before, bad);
  ASSERT_TRUE(send(*out, 78));
  EXPECT_EQ(next(*in), 78u);
}

TEST_F(ZmqMailbox, AFrameOverTheLimitNeverArrives) {
  auto in = inbox();
  auto out = outbox();
  const uint64_t before = bad_frames();
  RawPush peer(endpoint());
  peer.send(std::string(wire::kMaxFrameBytes + 1, 'x'));
  // The peer is cut off before the frame is read; another is served meanwhile.
  for (uint64_t id = 1; id <= 20; ++id) {
    ASSERT_TRUE(send(*out, id));
    EXPECT_EQ(next(*in), id);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_EQ(bad_frames(), before);
}

TEST_F(ZmqMailbox, BytesThatAreNotZeroMqHurtNoOtherPeer) {
  auto in = inbox();
  auto out = outbox();
  std::vector<int> sockets;
  for (const std::string& hello : {std::string("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), std::string(),
                                   std::string(4096, '\xFF'), std::string("\xFF\0\0\0\0\0\0\0\1\x7F\3\0NULL", 16)}) {
    const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path().c_str(), sizeof address.sun_path - 1);
    ASSERT_EQ(::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    if (!hello.empty()) {
      EXPECT_GT(::send(fd, hello.data(), hello.size(), MSG_NOSIGNAL), 0);
    }
    sockets.push_back(fd);
  }
  for (uint64_t id = 1; id <= 100; ++id) ASSERT_TRUE(send(*out, id));
  for (uint64_t id = 1; id <= 100; ++id) ASSERT_EQ(next(*in), id);
  for (int fd : sockets) ::close(fd);
}

TEST_F(ZmqMailbox, ARestartedReceiverGetsWhatIsSentToIt) {
  auto out = outbox();
  uint64_t id = 1;
  for (int incarnation = 0; incarnation < 3; ++incarnation) {
    auto in = inbox();
    EXPECT_EQ(next(*in, 50), std::nullopt) << "something stale waited";
    ASSERT_TRUE(send(*out, id));
    EXPECT_EQ(next(*in), id++);
    in.reset();
    // From some moment on the death is known, and every message stays here.
    ASSERT_TRUE(eventually([&] {
      wire::Message message = numbered(999);
      return !out->send(message).ok();
    }));
  }
}

TEST_F(ZmqMailbox, BindReplacesADeadSocketFile) {
  const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path().c_str(), sizeof address.sun_path - 1);
  ASSERT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ::close(fd);
  ASSERT_TRUE(std::filesystem::exists(path()));
  auto in = inbox();
  auto out = outbox();
  ASSERT_TRUE(send(*out, 5));
  EXPECT_EQ(next(*in), 5u);
}

TEST_F(ZmqMailbox, BadEndpointsAreErrors) {
  EXPECT_FALSE(bind_inbox(zmq_, "ipc:///no/such/folder/box.sock").ok());
  EXPECT_FALSE(bind_inbox(zmq_, "ipc://" + std::string(200, 'x')).ok());
  EXPECT_FALSE(connect_outbox(zmq_, "nonsense", BeforeConnected::kRefuse).ok());
}

TEST_F(ZmqMailbox, AMessageOverTheWiresLimitsIsRefusedBySend) {
  auto in = inbox();
  auto out = outbox();
  ASSERT_TRUE(send(*out, 1));
  wire::ChunkBatch large;
  large.chunks.resize(wire::kMaxBatchEntries + 1);
  wire::Message message = large;
  const Status status = out->send(message);
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.code(), StatusCode::kResourceExhausted) << "trying again would not help";
  ASSERT_TRUE(send(*out, 2));
  EXPECT_EQ(next(*in), 1u);
  EXPECT_EQ(next(*in), 2u);
}

TEST_F(ZmqMailbox, TwoThreadsMaySendThroughOneOutbox) {
  auto in = inbox();
  auto out = outbox();
  ASSERT_TRUE(send(*out, 0));
  ASSERT_EQ(next(*in), 0u);
  constexpr uint64_t kEach = 3000, kStride = 1'000'000;
  std::vector<std::thread> senders;
  for (uint64_t thread = 1; thread <= 2; ++thread) {
    senders.emplace_back([&, thread] {
      for (uint64_t i = 0; i < kEach; ++i) EXPECT_TRUE(send(*out, thread * kStride + i));
    });
  }
  uint64_t expected[3] = {};
  for (uint64_t i = 0; i < 2 * kEach; ++i) {
    const auto id = next(*in);
    ASSERT_TRUE(id.has_value());
    ASSERT_EQ(*id % kStride, expected[*id / kStride]++);
  }
  for (std::thread& sender : senders) sender.join();
  EXPECT_EQ(expected[1], kEach);
  EXPECT_EQ(expected[2], kEach);
}

}  // namespace
}  // namespace millrace
