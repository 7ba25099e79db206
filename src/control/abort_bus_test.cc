// The abort bus: hints arrive in order at a subscriber, and a publisher without one is not held up.
#include "control/abort_bus.h"

#include <gtest/gtest.h>
#include <zmq.h>

#include "base/log.h"
#include "control/counters.h"
#include "control/testing/sockets.h"
#include "wire/codec.h"

namespace millrace {
namespace {

using namespace testing_control;

class AbortBus : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { log_init("test", LogLevel::kError); }

  static std::optional<uint64_t> next(AbortSubscription& subscription) {
    std::optional<ReqId> id;
    eventually([&] { return (id = subscription.next()).has_value(); });
    return id ? std::optional(id->value) : std::nullopt;
  }
  // A subscription takes a moment to arrive: until a first hint comes through, and all of its repetitions are read.
  static void meet(AbortPublisher& publisher, AbortSubscription& subscription) {
    ASSERT_TRUE(eventually([&] {
      publisher.publish(ReqId{0});
      return subscription.next().has_value();
    }));
    publisher.publish(ReqId{1});
    ASSERT_TRUE(eventually([&] { return subscription.next() == ReqId{1}; }));
  }

  Folder folder_;
  ZmqContext zmq_, other_;
};

TEST_F(AbortBus, EveryTransportCarriesHintsInSequence) {
  ASSERT_TRUE(SharedKey::generate(folder_ / "key").ok());
  const SharedKey key = SharedKey::load(folder_ / "key").value();
  for (const std::string& endpoint : {"ipc://" + (folder_ / "bus"), std::string("tcp://127.0.0.1:0"),
                                      std::string("tcp://0.0.0.0:0"), std::string("inproc://aborts")}) {
    const SharedKey* wanted = endpoint.starts_with("tcp://0") ? &key : nullptr;
    auto publisher = bind_abort_publisher(zmq_, endpoint, wanted);
    ASSERT_TRUE(publisher.ok()) << publisher.status().to_string();
    std::string bound = (*publisher)->endpoint();
    if (wanted != nullptr) bound = fmt::format("tcp://127.0.0.1:{}", port_of(bound));
    ZmqContext& context = endpoint.starts_with("inproc") ? zmq_ : other_;
    auto first = subscribe_aborts(context, bound, nullptr, wanted),
         second = subscribe_aborts(context, bound, nullptr, wanted);
    ASSERT_TRUE(first.ok() && second.ok()) << first.status().to_string();
    meet(**publisher, **first);
    meet(**publisher, **second);
    for (uint64_t id = 10; id < 500; ++id) (*publisher)->publish(ReqId{id});
    for (auto* subscription : {first->get(), second->get()}) {
      std::optional<uint64_t> id;
      do {
        id = next(*subscription);  // past the meeting's own
      } while (id && *id < 10);
      for (uint64_t wanted_id = 10; wanted_id < 500; ++wanted_id, id = wanted_id < 500 ? next(*subscription) : id) {
        ASSERT_EQ(id, wanted_id) << endpoint;
      }
    }
  }
}

TEST_F(AbortBus, WithoutAKeyNothingBeyondLoopback) {
  EXPECT_EQ(bind_abort_publisher(zmq_, "tcp://0.0.0.0:0").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(subscribe_aborts(zmq_, "tcp://10.0.0.1:5").status().code(), StatusCode::kInvalidArgument);
}

TEST_F(AbortBus, ASubscriberThatDoesNotReadLosesHintsAndDoesNotHoldUpThePublisher) {
  auto publisher = bind_abort_publisher(zmq_, "tcp://127.0.0.1:0").value();
  auto slow = subscribe_aborts(other_, publisher->endpoint()).value();
  meet(*publisher, *slow);
  const uint64_t before = control_counters().abort_hints_dropped;
  const auto start = Clock::now();
  for (uint64_t i = 0; i < 20 * kMaxPendingHints; ++i) publisher->publish(ReqId{i});
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(120));
  // Most of these were lost at the publisher's own queue already; what goes on coming is lost at the subscriber's.
  ASSERT_TRUE(eventually([&] {
    for (uint64_t i = 0; i < 100; ++i) publisher->publish(ReqId{i});
    return slow->dropped() > 0;
  }));
  EXPECT_GT(control_counters().abort_hints_dropped, before);
  std::size_t kept = 0;
  while (slow->next()) ++kept;
  EXPECT_GE(kept, kMaxPendingHints);
}

TEST_F(AbortBus, AHintWakesTheStage) {
  LocalMailbox in = make_local_mailbox();
  auto publisher = bind_abort_publisher(zmq_, "ipc://" + (folder_ / "bus")).value();
  auto subscription = subscribe_aborts(other_, publisher->endpoint(), in.inbox->waker()).value();
  meet(*publisher, *subscription);
  while (in.inbox->receive(100) || subscription->next()) continue;
  publisher->publish(ReqId{44});
  // Either it waits and is woken, or the word was there before.
  EXPECT_FALSE(in.inbox->receive(60'000).has_value());
  EXPECT_EQ(next(*subscription), 44u);
}

// Only AbortRequests count; the rest is dropped for its reason.
TEST_F(AbortBus, WhatIsNoHintIsCounted) {
  void* const liar = zmq_socket(other_.handle(), ZMQ_PUB);
  ASSERT_EQ(zmq_bind(liar, ("ipc://" + (folder_ / "bus")).c_str()), 0);
  auto subscription = subscribe_aborts(zmq_, "ipc://" + (folder_ / "bus")).value();
  const auto put = [&](const std::string& frame, int flags = 0) { zmq_send(liar, frame.data(), frame.size(), flags); };
  const std::string hint = *wire::encode(numbered(3));
  ASSERT_TRUE(eventually([&] {
    put(hint);
    return subscription->next().has_value();
  }));
  const ControlCounters before = control_counters();
  put(*wire::encode(wire::AdminReply{.id = 1, .stage = "x"}));
  put("garbage");
  put(hint, ZMQ_SNDMORE), put(hint);
  put(*wire::encode(numbered(4)));
  ASSERT_TRUE(eventually([&] { return subscription->next() == ReqId{4}; }));
  const ControlCounters now = control_counters();
  EXPECT_EQ(now.of(BadFrame::kUnexpected) - before.of(BadFrame::kUnexpected), 1u);
  EXPECT_EQ(now.of(BadFrame::kMalformed) - before.of(BadFrame::kMalformed), 1u);
  EXPECT_EQ(now.of(BadFrame::kMultipart) - before.of(BadFrame::kMultipart), 1u);
  const int linger = 0;
  zmq_setsockopt(liar, ZMQ_LINGER, &linger, sizeof linger);
  zmq_close(liar);
}

TEST_F(AbortBus, SubscribersComeAndGo) {
  auto publisher = bind_abort_publisher(zmq_, "ipc://" + (folder_ / "bus")).value();
  for (int i = 0; i < 50; ++i) {
    auto subscription = subscribe_aborts(other_, publisher->endpoint()).value();
    publisher->publish(ReqId{1});
  }
  auto last = subscribe_aborts(other_, publisher->endpoint()).value();
  meet(*publisher, *last);
}

TEST_F(AbortBus, BetweenThreadsOfOneProcess) {
  LocalMailbox box = make_local_mailbox();
  std::unique_ptr<AbortSubscription> orphan;
  {
    LocalAbortBus bus;
    bus.publish(ReqId{1});  // without a subscriber
    auto woken = bus.subscribe(box.inbox->waker());
    { auto gone = bus.subscribe(); }
    orphan = bus.subscribe();
    for (uint64_t id = 2; id < 2 + kMaxPendingHints + 5; ++id) bus.publish(ReqId{id});
    EXPECT_FALSE(box.inbox->receive(60'000).has_value());
    for (auto* subscription : {woken.get(), orphan.get()}) {
      EXPECT_EQ(subscription->dropped(), 5u);
      for (uint64_t id = 2; id < 2 + kMaxPendingHints; ++id) ASSERT_EQ(subscription->next(), ReqId{id});
      EXPECT_FALSE(subscription->next().has_value());
    }
    bus.publish(ReqId{9});
  }
  EXPECT_EQ(orphan->next(), ReqId{9});
}

}  // namespace
}  // namespace millrace
