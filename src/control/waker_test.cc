// Wakers: a waiting receiver is woken, a word that came early is not lost, and messages are not harmed.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "base/log.h"
#include "control/testing/sockets.h"
#include "control/zmq_mailbox.h"

namespace millrace {
namespace {

using namespace testing_control;

enum class Kind { kLocal, kIpc, kTcp, kInproc };
constexpr int kLong = 600'000;  // ms: no test waits for it; one that does has failed

class WakerTest : public ::testing::TestWithParam<Kind> {
 protected:
  static void SetUpTestSuite() { log_init("test", LogLevel::kError); }
  void SetUp() override {
    if (GetParam() == Kind::kLocal) {
      LocalMailbox box = make_local_mailbox();
      in_ = std::move(box.inbox);
      out_ = box.outbox;
    } else {
      const std::string endpoint = GetParam() == Kind::kIpc   ? "ipc://" + (folder_ / "box")
                                   : GetParam() == Kind::kTcp ? "tcp://127.0.0.1:0"
                                                              : "inproc://box";
      auto in = bind_inbox(zmq_, endpoint);
      ASSERT_TRUE(in.ok()) << in.status().to_string();
      in_ = std::move(in).value();
      out_ = connect_outbox(zmq_, in_->endpoint(), BeforeConnected::kRefuse).value();
    }
    waker_ = in_->waker();
    ASSERT_TRUE(send(*out_, 0));
    ASSERT_EQ(next(*in_), 0u);
  }

  Folder folder_;
  ZmqContext zmq_;
  std::unique_ptr<Inbox> in_;
  std::shared_ptr<Outbox> out_;
  std::shared_ptr<Waker> waker_;
};

std::string kind_name(const ::testing::TestParamInfo<Kind>& info) {
  const char* const names[] = {"Local", "Ipc", "Tcp", "Inproc"};
  return names[static_cast<std::size_t>(info.param)];
}
INSTANTIATE_TEST_SUITE_P(All, WakerTest, ::testing::Values(Kind::kLocal, Kind::kIpc, Kind::kTcp, Kind::kInproc),
                         kind_name);

TEST_P(WakerTest, WakesWhoWaits) {
  std::atomic<bool> back{false};
  std::thread receiver([&] {
    EXPECT_FALSE(in_->receive(kLong).has_value());
    back = true;
  });
  sleep_ms(30);
  EXPECT_FALSE(back);
  waker_->wake();
  receiver.join();
}

TEST_P(WakerTest, AnEarlyWordIsForTheNextReceiveAlone) {
  waker_->wake();
  waker_->wake();
  const auto start = Clock::now();
  EXPECT_FALSE(in_->receive(kLong).has_value());
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(120));
  const auto again = Clock::now();
  EXPECT_FALSE(in_->receive(50).has_value());
  EXPECT_GE(Clock::now() - again, std::chrono::milliseconds(49)) << "two wakes before a receive are one";
}

TEST_P(WakerTest, WaitsWithoutALimitUntilItIsWoken) {
  std::atomic<bool> woken{false};
  std::thread other([&] {
    sleep_ms(20);
    waker_->wake();
    woken.wait(false);  // a message that has arrived comes before the word
    EXPECT_TRUE(send(*out_, 7));
  });
  EXPECT_FALSE(in_->receive(-1).has_value());
  woken = true;
  woken.notify_one();
  const auto message = in_->receive(-1);
  other.join();
  ASSERT_TRUE(message.has_value());
  EXPECT_EQ(number_of(*message), 7u);
}

TEST_P(WakerTest, AMessageThatHasArrivedComesFirst) {
  ASSERT_TRUE(send(*out_, 1));
  sleep_ms(100);  // it has arrived; should it not have, next() waits
  waker_->wake();
  EXPECT_EQ(next(*in_), 1u);
}

TEST_P(WakerTest, MayOutliveItsInbox) {
  in_.reset();
  waker_->wake();
  waker_.reset();
}

// Words and messages from two threads at once: each word is followed by a look of the receiver, no message is lost,
// and the receiver sleeps through nothing.
TEST_P(WakerTest, NoWordAndNoMessageIsLost) {
  const uint64_t rounds = kSanitized ? 2000 : 10'000;
  constexpr int kRoundMs = 120'000;  // no round takes so long, however long all of them take
  std::atomic<uint64_t> posted{0}, seen{0};
  std::thread worker([&] {
    for (uint64_t i = 1; i <= rounds; ++i) {
      posted.store(i);
      waker_->wake();
      // Every word must be noticed without another one coming to its help.
      while (seen.load() < i) std::this_thread::yield();
    }
  });
  std::thread sender([&] {
    for (uint64_t i = 1; i <= rounds; ++i) EXPECT_TRUE(send(*out_, i));
  });
  uint64_t expected = 1;
  while (expected <= rounds || seen.load() < rounds) {
    const auto start = Clock::now();
    if (auto message = in_->receive(kRoundMs)) {
      ASSERT_EQ(number_of(*message), expected++);
    }
    ASSERT_LT(Clock::now() - start, std::chrono::milliseconds(kRoundMs)) << "it slept through a word";
    seen.store(posted.load());
  }
  worker.join();
  sender.join();
}

}  // namespace
}  // namespace millrace
