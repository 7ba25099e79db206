#include "pipeline/coordinator_thread.h"

#include <gtest/gtest.h>

#include <thread>

#include "pipeline/testing/coordinator_thread_harness.h"

namespace millrace {
namespace {

using testing::kWaitMs;
using testing::Listener;

class CoordinatorThreadTest : public testing::CoordinatorThreadHarness {};

TEST_F(CoordinatorThreadTest, EachOfManyThreadsGetsItsAnswers) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([this, t] {
      for (int i = 0; i < 30; ++i) {
        Listener listener;
        const std::string word = fmt::format("word-{}-{}", t, i);
        core_->submit(Value(word), {}, listener.sink());
        ASSERT_TRUE(listener.wait_end());
        EXPECT_TRUE(listener.status.ok()) << listener.status.to_string();
        EXPECT_EQ(listener.text, word);
        EXPECT_EQ(*listener.result.get<std::string>(), word);
        EXPECT_EQ(listener.ends, 1);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(core_->books().completed, 180u);
}

TEST_F(CoordinatorThreadTest, CancelAbortAndDeadline) {
  Listener cancelled, aborted, late;
  const ReqId first = core_->submit(Value("never"), {}, cancelled.sink());
  const ReqId second = core_->submit(Value("never"), {}, aborted.sink());
  core_->submit(Value("never"), {.timeout_ms = 50}, late.sink());
  core_->cancel(first);
  core_->abort(second);
  core_->abort(second);
  ASSERT_TRUE(cancelled.wait_end());
  EXPECT_EQ(cancelled.status.code(), StatusCode::kCancelled);
  ASSERT_TRUE(late.wait_end());
  EXPECT_EQ(late.status.code(), StatusCode::kDeadline);
  EXPECT_TRUE(wait_for([this] { return core_->books().open_aborts == 0; }));
  EXPECT_EQ(aborted.ends, 0);
  EXPECT_GE(stage_->aborts.load(), 3);
}

TEST_F(CoordinatorThreadTest, ASlowClientGetsEverythingOnceItReads) {
  Listener slow;
  slow.takes = false;
  core_->submit(Value("a slow word"), {}, slow.sink());
  Listener other;
  core_->submit(Value("quick"), {}, other.sink());
  ASSERT_TRUE(other.wait_end());
  EXPECT_EQ(other.text, "quick");
  {
    std::lock_guard lock(slow.mutex);
    EXPECT_EQ(slow.ends, 0);
    slow.takes = true;
  }
  ASSERT_TRUE(slow.wait_end());
  EXPECT_EQ(slow.text, "a slow word");
  EXPECT_TRUE(slow.status.ok());
}

TEST_F(CoordinatorThreadTest, AdminCommandsAreAnswered) {
  std::mutex mutex;
  std::vector<wire::AdminReply> replies;
  core_->admin({.timeout_ms = kWaitMs}, [&](std::vector<wire::AdminReply> all) {
    std::lock_guard lock(mutex);
    replies = std::move(all);
  });
  const auto answered = [&] {
    std::lock_guard lock(mutex);
    return !replies.empty();
  };
  ASSERT_TRUE(wait_for(answered));
  EXPECT_EQ(replies[0].stage, "echo");
  EXPECT_EQ(replies[0].code, StatusCode::kOk);
}

TEST_F(CoordinatorThreadTest, ADeadStageEndsItsRequestsAndIsReported) {
  Listener listener;
  core_->submit(Value("never"), {}, listener.sink());
  core_->down("echo", 0, 1, "killed");
  ASSERT_TRUE(listener.wait_end());
  EXPECT_EQ(listener.status.code(), StatusCode::kUnavailable);
  EXPECT_TRUE(wait_for([this] { return lost_replicas_.load() == 1; }));
  EXPECT_FALSE(core_->health().ready);
}

TEST_F(CoordinatorThreadTest, DrainAndWait) {
  Listener never, refused;
  core_->submit(Value("never"), {}, never.sink());
  core_->drain();
  core_->submit(Value("late"), {}, refused.sink());
  ASSERT_TRUE(refused.wait_end());
  EXPECT_EQ(refused.status.code(), StatusCode::kUnavailable);
  EXPECT_FALSE(core_->wait_idle(30));
  ASSERT_TRUE(never.wait_end());
  EXPECT_EQ(never.status.message(), "the server is shutting down");
  EXPECT_TRUE(core_->wait_idle(30));
}

}  // namespace
}  // namespace millrace
