// Mailboxes among hostile and slow peers: garbage at every stage of a connection, crowds that send nothing, huge
// frames, a million messages for a slow reader. What is bad is dropped and counted, and every other peer is served.
#include <gtest/gtest.h>
#include <zmq.h>

#include <algorithm>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "base/log.h"
#include "control/counters.h"
#include "control/testing/sockets.h"
#include "control/zmq_mailbox.h"
#include "wire/codec.h"
#include "wire/limits.h"

namespace millrace {
namespace {

using namespace testing_control;

class ZmqHostile : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { log_init("test", LogLevel::kError); }
  void SetUp() override {
    auto made = bind_inbox(zmq_, "tcp://127.0.0.1:0");
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    in_ = std::move(made).value();
    port_ = port_of(in_->endpoint());
    out_ = connect_outbox(zmq_, in_->endpoint(), BeforeConnected::kRefuse).value();
    ASSERT_TRUE(send(*out_, 0));
    ASSERT_EQ(next(*in_), 0u);
  }
  void expect_served() {
    for (uint64_t id = 1; id <= 100; ++id) ASSERT_TRUE(send(*out_, id));
    for (uint64_t id = 1; id <= 100; ++id) ASSERT_EQ(next(*in_), id);
  }

  ZmqContext zmq_;
  std::unique_ptr<Inbox> in_;
  std::shared_ptr<Outbox> out_;
  uint16_t port_ = 0;
};

// Not everything here is refused as a connection: without its first byte, 0xFF, a greeting is one of ZMTP 1.0, whose
// frames are anything.
TEST_F(ZmqHostile, RandomBytes) {
  const auto refused = [] {
    const ControlCounters now = control_counters();
    return now.of(LinkEvent::kRefusedProtocol) + now.of(LinkEvent::kRefusedOther) + now.of(BadFrame::kEmpty) +
           now.of(BadFrame::kMultipart) + now.of(BadFrame::kMalformed);
  };
  const uint64_t before = refused();
  std::mt19937 random(7);
  for (int i = 0; i < 100; ++i) {
    std::string noise(1 + random() % 2000, '\0');
    for (char& byte : noise) byte = static_cast<char>(random());
    RawPeer(port_).send(noise);
  }
  expect_served();
  EXPECT_TRUE(eventually([&] {
    in_->receive(0);
    return refused() > before;
  }));
}

// ZMTP 1.0 knows no keys: where there is one, it is no way round it.
TEST_F(ZmqHostile, AnOldProtocolIsNoWayRoundTheKey) {
  const std::string good = *wire::encode(numbered(5));
  const std::string old_frames = std::string("\x01\0", 2) + static_cast<char>(good.size() + 1) + '\0' + good;
  RawPeer(port_).send(old_frames);
  EXPECT_EQ(next(*in_), 5u) << "so these are good frames of the old protocol";
  const SharedKey key = SharedKey::parse(std::string(63, 'a') + "b").value();
  auto locked = bind_inbox(zmq_, "tcp://127.0.0.1:0", &key).value();
  RawPeer peer(port_of(locked->endpoint()));
  peer.send(old_frames);
  EXPECT_TRUE(peer.hung_up_on());
  EXPECT_FALSE(locked->receive(50).has_value());
}

TEST_F(ZmqHostile, AGoodGreetingThenGarbage) {
  std::mt19937 random(8);
  for (int i = 0; i < 50; ++i) {
    std::string noise(1 + random() % 500, '\0');
    for (char& byte : noise) byte = static_cast<char>(random());
    RawPeer(port_).send(zmtp_greeting() + noise);
    const RawPeer peer(port_);
    EXPECT_TRUE(peer.greet());
    peer.send(noise);
    RawPeer(port_).send(zmtp_greeting().substr(0, random() % 64));
  }
  expect_served();
}

TEST_F(ZmqHostile, NoMemoryIsAllocatedForAFrameOfFourGibibytes) {
  const std::size_t before = resident_bytes();
  std::vector<RawPeer> peers;
  for (int i = 0; i < 20; ++i) {
    peers.emplace_back(port_);
    // A long frame (flag 2): its size is 8 bytes, big-endian.
    ASSERT_TRUE(peers.back().greet());
    peers.back().send(std::string("\x02\0\0\0\1\0\0\0\0", 9) + std::string(1000, 'x'));
  }
  for (const RawPeer& peer : peers) EXPECT_TRUE(peer.hung_up_on());
  expect_served();
  EXPECT_LT(resident_bytes(), before + (std::size_t{512} << 20));
}

// A part of a good message: the heartbeat is its deadline, and nothing of it is handed on.
TEST_F(ZmqHostile, HalfAFrameAndThenSilenceIsCutOff) {
  const std::string good = *wire::encode(numbered(5));
  ASSERT_LT(good.size(), 256u);
  const std::string frame = std::string(1, '\0') + static_cast<char>(good.size()) + good;
  std::vector<RawPeer> peers;
  for (std::size_t bytes = 1; bytes < frame.size(); ++bytes) {
    peers.emplace_back(port_);
    ASSERT_TRUE(peers.back().greet());
    peers.back().send(frame.substr(0, bytes));
  }
  peers.emplace_back(port_);  // 16 MiB are announced, and one comes
  ASSERT_TRUE(peers.back().greet());
  peers.back().send(std::string("\x02\0\0\0\0\1\0\0\0", 9) + std::string(std::size_t{1} << 20, 'x'));
  expect_served();
  for (const RawPeer& peer : peers) ASSERT_TRUE(peer.hung_up_on());
  expect_served();
  RawPeer complete(port_);  // so these are good frames
  ASSERT_TRUE(complete.greet());
  complete.send(frame);
  EXPECT_EQ(next(*in_), 5u);
}

TEST_F(ZmqHostile, FiveHundredSilentPeers) {
  std::vector<RawPeer> crowd;
  for (int i = 0; i < 500; ++i) crowd.emplace_back(port_);
  expect_served();
  auto late = connect_outbox(zmq_, in_->endpoint(), BeforeConnected::kRefuse).value();
  ASSERT_TRUE(send(*late, 77));
  EXPECT_EQ(next(*in_), 77u);
  // Silence has its time, and then the descriptor is free again.
  for (const RawPeer& peer : crowd) ASSERT_TRUE(peer.hung_up_on());
}

// Good ZeroMQ, bad messages: each dropped for its own reason.
TEST_F(ZmqHostile, EveryReasonIsCounted) {
  const ControlCounters before = control_counters();
  void* const peer = zmq_socket(zmq_.handle(), ZMQ_PUSH);
  ASSERT_EQ(zmq_connect(peer, in_->endpoint().c_str()), 0);
  const std::string good = *wire::encode(numbered(5));
  const auto put = [&](const std::string& frame, int flags = 0) {
    EXPECT_EQ(zmq_send(peer, frame.data(), frame.size(), flags), static_cast<int>(frame.size()));
  };
  std::string other_version = good;  // {0: version, ...}: the third byte is the version
  ASSERT_EQ(other_version[2], static_cast<char>(wire::kWireVersion));
  other_version[2] = static_cast<char>(wire::kWireVersion + 1);
  put("");
  put(other_version), put(other_version);
  put(good + "x"), put("garbage"), put(std::string(100'000, '\x92'));
  for (int part = 0; part < 1000; ++part) put(good, part < 999 ? ZMQ_SNDMORE : 0);
  put(good);
  EXPECT_EQ(next(*in_), 5u);
  const ControlCounters now = control_counters();
  EXPECT_EQ(now.of(BadFrame::kEmpty) - before.of(BadFrame::kEmpty), 1u);
  EXPECT_EQ(now.of(BadFrame::kVersion) - before.of(BadFrame::kVersion), 2u);
  EXPECT_EQ(now.of(BadFrame::kMalformed) - before.of(BadFrame::kMalformed), 3u);
  EXPECT_EQ(now.of(BadFrame::kMultipart) - before.of(BadFrame::kMultipart), 1u);
  EXPECT_FALSE(in_->receive(20).has_value()) << "a part was taken for a message";
  const int linger = 0;
  zmq_setsockopt(peer, ZMQ_LINGER, &linger, sizeof linger);
  zmq_close(peer);
}

// What all versions have in common is enough to identify it; each is reported once.
TEST_F(ZmqHostile, OtherVersionsAreCountedOnceAPeerAndJoinersAreHandedOn) {
  const ControlCounters before = control_counters();
  void* const peer = zmq_socket(zmq_.handle(), ZMQ_PUSH);
  ASSERT_EQ(zmq_connect(peer, in_->endpoint().c_str()), 0);
  const auto put = [&](const wire::Message& message) {
    std::string frame = *wire::encode(message);
    frame[2] = 99;
    EXPECT_EQ(zmq_send(peer, frame.data(), frame.size(), 0), static_cast<int>(frame.size()));
  };
  const wire::Origin origin{.session = 3, .stage = "unregistered", .replica = 1, .incarnation = 2};
  for (int i = 0; i < 3; ++i) put(wire::AbortAck{.id = ReqId{4}, .from = origin});
  put(wire::StageStatus{.stage = "another"});
  wire::Register registration{.self = {.stage = "joiner", .replica = 2, .incarnation = 77}, .reply_to = "ipc:///x"};
  registration.self.relays = {{"shm", {"address"}}};
  put(registration);
  std::optional<wire::Message> received;
  EXPECT_TRUE(eventually([&] { return (received = in_->receive(100)).has_value(); }));
  ASSERT_TRUE(received && std::holds_alternative<wire::Register>(*received));
  const auto& joiner = std::get<wire::Register>(*received);
  EXPECT_EQ(joiner.wire_version, 99u);
  EXPECT_EQ(joiner.self.stage, "joiner");
  EXPECT_EQ(joiner.self.replica, 2u);
  EXPECT_EQ(joiner.self.incarnation, 77u);
  EXPECT_EQ(joiner.reply_to, "ipc:///x");
  const ControlCounters now = control_counters();
  EXPECT_EQ(now.of(BadFrame::kVersion) - before.of(BadFrame::kVersion), 5u);
  EXPECT_EQ(now.other_version_peers - before.other_version_peers, 3u);  // unregistered, another, joiner
  EXPECT_EQ(now.of(BadFrame::kMalformed), before.of(BadFrame::kMalformed));
  const int linger = 0;
  zmq_setsockopt(peer, ZMQ_LINGER, &linger, sizeof linger);
  zmq_close(peer);
}

TEST(ControlCounters, StandInTheMetrics) {
  count(BadFrame::kVersion, "test");
  const Metrics metrics("millrace:");
  const std::string page = metrics.render(control_samples());
  for (const char* series : {"millrace:control_bad_frames_total{reason=\"version\"}",
                             "millrace:control_bad_frames_total{reason=\"multipart\"} ",
                             "millrace:control_links_total{event=\"refused_auth\"} "}) {
    EXPECT_NE(page.find(series), std::string::npos) << series << " is not in\n" << page;
  }
}

// However often it tries, and however many try.
TEST(ControlCounters, ARefusedPeerIsALineInEachInterval) {
  log_init("test", LogLevel::kWarning);
  ::testing::internal::CaptureStderr();
  const auto refuse = [](const char* peer, int64_t now_ms) { log_refused(LinkEvent::kRefusedProtocol, peer, now_ms); };
  refuse("10.0.0.9", 0);
  for (int64_t ms = 1; ms <= 1000; ++ms) refuse("10.0.0.9", ms), refuse("", ms);
  refuse("10.0.0.8", 1000);
  refuse("10.0.0.9", kRefusedLogMs);
  log_refused(LinkEvent::kRefusedOther, "10.0.0.7", 0);  // a peer that leaves in the middle
  const std::string logged = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(logged.begin(), logged.end(), '\n'), 3) << logged;
  EXPECT_NE(logged.find("a connection from 10.0.0.8"), std::string::npos) << logged;
  EXPECT_NE(logged.find("1001 connections from 10.0.0.9"), std::string::npos) << logged;
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 1000; ++i) refuse(fmt::format("10.1.{}.{}", i / 250, i % 250).c_str(), kRefusedLogMs);
  const std::string many = ::testing::internal::GetCapturedStderr();
  EXPECT_LE(std::count(many.begin(), many.end(), '\n'), static_cast<int64_t>(kMaxRefusedPeers)) << many;
}

// A slow reader: no loss, no growth, and the sender gets an error and waits.
TEST(ZmqLoad, AMillionMessagesThroughIpc) {
  log_init("test", LogLevel::kError);
  const uint64_t total = kSanitized ? 100'000 : 1'000'000;
  Folder folder;
  ZmqContext zmq, other;
  auto in = bind_inbox(zmq, "ipc://" + (folder / "box")).value();
  auto out = connect_outbox(other, in->endpoint(), BeforeConnected::kRefuse).value();
  ASSERT_TRUE(send(*out, 0));
  ASSERT_EQ(next(*in), 0u);
  const std::size_t before = resident_bytes();
  std::atomic<uint64_t> refused{0};
  uint64_t wrong_code = 0;
  std::thread sender([&] {
    for (uint64_t id = 1; id <= total;) {
      wire::Message message = numbered(id);
      const Status status = out->send(message);
      id += status.ok();
      refused += !status.ok();
      wrong_code += !status.ok() && status.code() != StatusCode::kResourceExhausted;
      if (!status.ok()) std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  });
  std::size_t most = 0;
  for (uint64_t id = 1; id <= total; ++id) {
    if (id % (total / 8) == 1) {
      sleep_ms(150);
      if (id == 1) {
        EXPECT_TRUE(eventually([&] { return refused > 0; })) << "the sender never met a full queue";
      }
      most = std::max(most, resident_bytes());
    }
    ASSERT_EQ(next(*in), id);
  }
  sender.join();
  EXPECT_FALSE(in->receive(0).has_value());
  EXPECT_EQ(wrong_code, 0u);
  // Two queues of kMailboxCapacity messages of 64 bytes and what the library keeps for them.
  EXPECT_LT(most, before + (std::size_t{kSanitized ? 512 : 32} << 20));
}

}  // namespace
}  // namespace millrace
