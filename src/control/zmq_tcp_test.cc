// Mailboxes over tcp and inproc: addresses, keys, refusals, peers that vanish without a word.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <thread>
#include <vector>

#include "base/log.h"
#include "control/counters.h"
#include "control/testing/sockets.h"
#include "control/zmq_mailbox.h"

namespace millrace {
namespace {

using namespace testing_control;

bool has_ipv6() {
  const int fd = ::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_addr = in6addr_loopback;
  const bool yes = fd >= 0 && ::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  if (fd >= 0) ::close(fd);
  return yes;
}

class ZmqTcp : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { log_init("test", LogLevel::kError); }

  SharedKey key(const std::string& name) {
    EXPECT_TRUE(SharedKey::generate(folder_ / name).ok());
    return SharedKey::load(folder_ / name).value();
  }
  std::unique_ptr<Inbox> inbox(const std::string& endpoint, const SharedKey* key = nullptr) {
    auto made = bind_inbox(zmq_, endpoint, key);
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    return std::move(made).value();
  }
  std::shared_ptr<Outbox> outbox(const std::string& endpoint, const SharedKey* key = nullptr) {
    auto made = connect_outbox(other_, endpoint, {.key = key});
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    return std::move(made).value();
  }
  // From the inbox's endpoint, with its real port, to one of 127.0.0.1.
  static std::string at_loopback(const Inbox& in) { return fmt::format("tcp://127.0.0.1:{}", port_of(in.endpoint())); }
  static void exchange(Inbox& in, Outbox& out, uint64_t count) {
    for (uint64_t id = 1; id <= count; ++id) ASSERT_TRUE(send(out, id));
    for (uint64_t id = 1; id <= count; ++id) ASSERT_EQ(next(in), id);
  }
  // Nothing gets through, and the sender gets an error, each time.
  static void expect_never_connected(Inbox& in, Outbox& out) {
    const auto end = Clock::now() + std::chrono::milliseconds(600);
    while (Clock::now() < end) {
      wire::Message message = numbered(13);
      const Status status = out.send(message);
      ASSERT_EQ(status.code(), StatusCode::kUnavailable) << status.to_string();
      ASSERT_EQ(number_of(message), 13u);
      sleep_ms(10);
    }
    EXPECT_FALSE(in.receive(0).has_value());
  }

  Folder folder_;
  ZmqContext zmq_, other_;  // before the sockets, which they outlive
};

TEST_F(ZmqTcp, Port0ReportsTheRealOne) {
  auto in = inbox("tcp://127.0.0.1:0");
  auto second = inbox("tcp://127.0.0.1:0");
  EXPECT_NE(port_of(in->endpoint()), 0);
  EXPECT_NE(in->endpoint(), second->endpoint());
  auto out = outbox(in->endpoint());
  exchange(*in, *out, 500);
  const auto again = bind_inbox(zmq_, in->endpoint());
  ASSERT_FALSE(again.ok());
  EXPECT_EQ(again.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(again.status().message().find(in->endpoint()), std::string::npos);
}

TEST_F(ZmqTcp, Ipv6Loopback) {
  if (!has_ipv6()) GTEST_SKIP() << "this machine has no IPv6 loopback";
  auto in = inbox("tcp://[::1]:0");
  EXPECT_TRUE(in->endpoint().starts_with("tcp://[::1]:")) << in->endpoint();
  auto out = outbox(in->endpoint());
  exchange(*in, *out, 500);
}

TEST_F(ZmqTcp, LocalhostByName) {
  auto in = inbox("tcp://localhost:0");
  EXPECT_TRUE(in->endpoint().starts_with("tcp://localhost:")) << in->endpoint();
  auto out = outbox(in->endpoint());
  exchange(*in, *out, 100);
}

TEST_F(ZmqTcp, BeyondLoopbackNothingWithoutAKey) {
  for (const char* wide : {"tcp://0.0.0.0:0", "tcp://*:0", "tcp://[::]:0", "tcp://10.0.0.1:0"}) {
    const auto in = bind_inbox(zmq_, wide);
    ASSERT_FALSE(in.ok()) << wide;
    EXPECT_EQ(in.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(in.status().message().find("wanted a shared key"), std::string::npos) << in.status().message();
    EXPECT_NE(in.status().message().find(wide), std::string::npos) << in.status().message();
  }
  for (const char* wide : {"tcp://10.0.0.1:5", "tcp://node7.example:5", "tcp://[fd00::1]:5"}) {
    const auto out = connect_outbox(zmq_, wide, BeforeConnected::kRefuse);
    ASSERT_FALSE(out.ok()) << wide;
    EXPECT_EQ(out.status().code(), StatusCode::kInvalidArgument);
  }
}

TEST_F(ZmqTcp, WithTheKeyFromAnywhere) {
  const SharedKey ours = key("a.key");
  auto in = inbox("tcp://0.0.0.0:0", &ours);
  auto out = outbox(at_loopback(*in), &ours);
  exchange(*in, *out, 2000);
  wire::ChunkBatch batch{.from = {.session = 1, .stage = "a"}};
  batch.chunks.push_back({.body = wire::TextDelta{.text = std::string(3'000'000, 'x')}});
  wire::Message message = batch;
  ASSERT_TRUE(out->send(message).ok());
  const auto back = in->receive(20'000);
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(std::get<wire::TextDelta>(std::get<wire::ChunkBatch>(*back).chunks.at(0).body).text.size(), 3'000'000u);
}

TEST_F(ZmqTcp, AWrongKeyIsNeverConnectedAndCounted) {
  const SharedKey ours = key("a.key"), theirs = key("b.key");
  auto in = inbox("tcp://0.0.0.0:0", &ours);
  const ControlCounters before = control_counters();
  auto unregistered = outbox(at_loopback(*in), &theirs);
  expect_never_connected(*in, *unregistered);
  EXPECT_GT(control_counters().of(LinkEvent::kRefusedProtocol), before.of(LinkEvent::kRefusedProtocol));
  auto out = outbox(at_loopback(*in), &ours);
  exchange(*in, *out, 100);
}

TEST_F(ZmqTcp, WithAndWithoutAKeyDoNotMix) {
  const SharedKey ours = key("a.key");
  auto locked = inbox("tcp://127.0.0.1:0", &ours);
  auto plain_out = outbox(at_loopback(*locked));
  expect_never_connected(*locked, *plain_out);
  auto open = inbox("tcp://127.0.0.1:0");
  auto locked_out = outbox(at_loopback(*open), &ours);
  expect_never_connected(*open, *locked_out);
}

// Two keys in one process: each socket takes its own alone.
TEST_F(ZmqTcp, EachSocketHasASeparateKey) {
  const SharedKey a = key("a.key"), b = key("b.key");
  auto in_a = inbox("tcp://127.0.0.1:0", &a), in_b = inbox("tcp://127.0.0.1:0", &b);
  auto out_a = outbox(at_loopback(*in_a), &a), out_b = outbox(at_loopback(*in_b), &b);
  auto crossed = outbox(at_loopback(*in_b), &a);
  exchange(*in_a, *out_a, 100);
  exchange(*in_b, *out_b, 100);
  expect_never_connected(*in_b, *crossed);
}

TEST_F(ZmqTcp, ARestartedReceiverIsFoundAgain) {
  const SharedKey ours = key("a.key");
  auto in = inbox("tcp://127.0.0.1:0", &ours);
  const std::string endpoint = in->endpoint();
  auto out = outbox(endpoint, &ours);
  uint64_t id = 1;
  for (int incarnation = 0; incarnation < 3; ++incarnation) {
    ASSERT_TRUE(send(*out, id));
    EXPECT_EQ(next(*in), id++);
    in.reset();
    ASSERT_TRUE(eventually([&] {
      wire::Message message = numbered(999);
      return out->send(message).code() == StatusCode::kUnavailable;
    }));
    ASSERT_TRUE(eventually([&] {
      auto made = bind_inbox(zmq_, endpoint, &ours);
      if (made.ok()) in = std::move(made).value();
      return made.ok();
    }));
    EXPECT_FALSE(in->receive(50).has_value()) << "something stale waited";
  }
}

// The other machine is gone without a word: both ends notice, within 2 s where the machine is not busy.
// On a busy machine the last ping may be old when the hole begins, so the time is that of the best of some tries.
TEST_F(ZmqTcp, AHalfOpenPeerIsNoticed) {
  constexpr int kTries = 8;
  constexpr auto kLeast = std::chrono::milliseconds(1000);
  Clock::duration noticed{};
  for (int i = 0; i < kTries && noticed < kLeast; ++i) {
    auto in = inbox("tcp://127.0.0.1:0");
    Proxy proxy(port_of(in->endpoint()));
    auto out = outbox(fmt::format("tcp://127.0.0.1:{}", proxy.port()));
    exchange(*in, *out, 10);
    const uint64_t lost = control_counters().of(LinkEvent::kLost);
    const auto start = Clock::now();
    proxy.hole();
    ASSERT_TRUE(eventually([&] {
      wire::Message message = numbered(999);
      return out->send(message).code() == StatusCode::kUnavailable;
    }));
    // By the sender and by the receiver, each of its own accord.
    ASSERT_TRUE(eventually([&] { return control_counters().of(LinkEvent::kLost) >= lost + 2; }));
    noticed = Clock::now() - start;
  }
  EXPECT_GE(noticed, kLeast) << "a stop of a second must cost no peer the link";
}

uint64_t links_lost() { return control_counters().of(LinkEvent::kLost); }

// Sends so many while the reader stops twice. False where a message is missing: the link was cut then.
bool all_arrive(Inbox& in, Outbox& out, uint64_t total) {
  const uint64_t lost = links_lost();
  std::atomic<bool> sent{false};
  std::thread sender([&] {
    for (uint64_t id = 1; id <= total; ++id) EXPECT_TRUE(send(out, id));
    sent = true;
  });
  uint64_t id = 1;
  for (bool in_sequence = true; in_sequence && id <= total; id += in_sequence) {
    if (id % (total / 2) == 1) sleep_ms(700);
    std::optional<uint64_t> got;
    eventually([&] {
      if (auto message = in.receive(10)) got = number_of(*message);
      return got.has_value() || links_lost() > lost;
    });
    in_sequence = got == id;
  }
  while (!sent) in.receive(10);  // a sender with a full queue waits for the reader
  sender.join();
  if (id > total) return true;
  EXPECT_TRUE(eventually([&] { return links_lost() > lost; })) << "message " << id << " is lost, and no link";
  return false;
}

// Heartbeats must not take a slow reader for a dead one. A machine that runs the library's threads for none of their
// time makes dead ones of both: then the test tries again.
TEST_F(ZmqTcp, AReaderThatStopsForAMomentLosesNothing) {
  constexpr int kTries = 8;
  bool arrived = false;
  for (int i = 0; i < kTries && !arrived; ++i) {
    auto in = inbox("tcp://127.0.0.1:0");
    auto out = outbox(in->endpoint());
    ASSERT_TRUE(send(*out, 0));
    ASSERT_EQ(next(*in), 0u);
    arrived = all_arrive(*in, *out, kSanitized ? 12'000 : 60'000);
  }
  EXPECT_TRUE(arrived) << "a link was cut in each of " << kTries << " tries";
}

// One that hangs with a full queue is: the link is cut, what waited is lost, and it goes on. Each connection keeps its
// order; what came over the one before may be read between what comes over the next. The messages are of 4 KiB, so that
// the kernel's buffers are soon full.
TEST_F(ZmqTcp, AReaderThatHangsIsCutOffAndFoundAgain) {
  const auto bulky = [](uint64_t id) -> wire::Message {
    wire::ChunkBatch batch{.from = {.session = 1, .stage = "a"}};
    batch.chunks.push_back({.id = ReqId{id}, .body = wire::TextDelta{.text = std::string(4096, 'x')}});
    return batch;
  };
  auto in = inbox("tcp://127.0.0.1:0");
  auto out = connect_outbox(other_, in->endpoint(), OutboxOptions{.queue_limit = 64}).value();
  const uint64_t lost = control_counters().of(LinkEvent::kLost);
  uint64_t sent = 0;
  ASSERT_TRUE(eventually(
      [&] {
        for (int i = 0; i < 1000; ++i) {
          wire::Message message = bulky(sent + 1);
          if (!out->send(message).ok()) break;
          ++sent;
        }
        return control_counters().of(LinkEvent::kLost) > lost;
      },
      60'000));
  // At last something comes out that was sent after the cut. `newest`: the newest number of each connection, so far as
  // the numbers show that there are several.
  std::vector<uint64_t> newest;
  uint64_t last = 0, id = sent;
  EXPECT_TRUE(eventually([&] {
    wire::Message message = bulky(++id);
    const bool taken = out->send(message).ok();
    while (const auto got = in->receive(taken ? 5 : 0)) {
      const uint64_t number = std::get<wire::ChunkBatch>(*got).chunks.at(0).id.value;
      std::sort(newest.begin(), newest.end(), std::greater<>());
      const auto before = std::find_if(newest.begin(), newest.end(), [&](uint64_t one) { return one < number; });
      before == newest.end() ? newest.push_back(number) : void(*before = number);
      last = std::max(last, number);
    }
    return last > sent;
  })) << last
      << " of " << sent;
  EXPECT_LE(newest.size(), 1 + control_counters().of(LinkEvent::kLost) - lost) << "a connection changed the order";
}

class ZmqInproc : public ::testing::Test {
 protected:
  ZmqContext zmq_;
};

TEST_F(ZmqInproc, RefusesKeepsAndRestarts) {
  auto refusing = connect_outbox(zmq_, "inproc://stage", BeforeConnected::kRefuse).value();
  wire::Message message = numbered(1);
  EXPECT_EQ(refusing->send(message).code(), StatusCode::kUnavailable);
  auto keeping = connect_outbox(zmq_, "inproc://stage", BeforeConnected::kKeep).value();
  EXPECT_TRUE(keeping->send(message).ok());
  message = numbered(2);
  EXPECT_EQ(refusing->send(message).code(), StatusCode::kUnavailable) << "it waits for no receiver";
  auto in = bind_inbox(zmq_, "inproc://stage").value();
  EXPECT_EQ(in->endpoint(), "inproc://stage");
  EXPECT_EQ(bind_inbox(zmq_, "inproc://stage").status().code(), StatusCode::kConflict);
  EXPECT_TRUE(refusing->send(message).ok());
  EXPECT_EQ(next(*in), 1u);
  EXPECT_EQ(next(*in), 2u);
  in.reset();
  message = numbered(3);
  EXPECT_EQ(refusing->send(message).code(), StatusCode::kUnavailable);
  in = bind_inbox(zmq_, "inproc://stage").value();
  EXPECT_TRUE(refusing->send(message).ok());
  EXPECT_EQ(next(*in), 3u);
  // Names are of one context.
  ZmqContext other;
  auto elsewhere = connect_outbox(other, "inproc://stage", BeforeConnected::kRefuse).value();
  message = numbered(4);
  EXPECT_EQ(elsewhere->send(message).code(), StatusCode::kUnavailable);
}

TEST_F(ZmqInproc, AQueueLimitIsTheSenders) {
  auto in = bind_inbox(zmq_, "tcp://127.0.0.1:0").value();
  for (const int bad : {0, -1, kMailboxCapacity + 1}) {
    EXPECT_EQ(connect_outbox(zmq_, in->endpoint(), OutboxOptions{.queue_limit = bad}).status().code(),
              StatusCode::kInvalidArgument);
  }
  // No receiver exists yet: exactly so many wait.
  auto out = connect_outbox(zmq_, "tcp://127.0.0.1:1", {.policy = BeforeConnected::kKeep, .queue_limit = 5}).value();
  for (uint64_t id = 1; id <= 5; ++id) {
    wire::Message message = numbered(id);
    EXPECT_TRUE(out->send(message).ok());
  }
  wire::Message message = numbered(6);
  EXPECT_EQ(out->send(message).code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace millrace
