#include "base/cpu_wait.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <thread>
#include <vector>

namespace millrace {
namespace {

constexpr int64_t kMs = 1'000'000;

TEST(CpuWait, ReadsStateAndTimesOfAThread) {
  const auto running = CpuWait::parse("12 (a) b) R 1 2", "7111134 42 1\n");
  EXPECT_TRUE(running.is_ready);
  EXPECT_EQ(running.ran_ns, 7111134);
  EXPECT_EQ(running.waited_ns, 42);
  EXPECT_FALSE(CpuWait::parse("12 (R) S 1 2", "1 2 3").is_ready);
  const auto gone = CpuWait::parse("", "");
  EXPECT_FALSE(gone.is_ready);
  EXPECT_EQ(gone.waited_ns, 0);
}

TEST(CpuWait, AThreadWaitsWhereItIsReadyAndDoesNotRun) {
  const auto waited = [](bool before, bool after, int64_t ran_ms, int64_t counted_ms) {
    return CpuWait::waited_ms({before, 0, 0}, {after, ran_ms * kMs, counted_ms * kMs}, 200);
  };
  EXPECT_EQ(waited(true, true, 0, 0), 200);  // it has waited all the time, and waits still
  EXPECT_EQ(waited(true, true, 200, 0), 0);  // it computes without an end
  EXPECT_EQ(waited(false, false, 0, 0), 0);  // it sleeps: for a lock, or an event
  EXPECT_EQ(waited(false, false, 20, 150), 150);
  EXPECT_EQ(waited(true, true, 150, 40), 50);
  EXPECT_EQ(waited(true, true, 0, 900), 200);  // an older wait, which was counted late
}

// Two threads that share a CPU wait for each other.
TEST(CpuWait, SeesThreadsThatShareACpu) {
  cpu_set_t mine, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof mine, &mine), 0);
  CPU_ZERO(&one);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &mine)) {
      CPU_SET(cpu, &one);
      break;
    }
  }
  std::atomic<bool> over{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      EXPECT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
      while (!over) {
      }
    });
  }
  CpuWait wait;
  EXPECT_EQ(wait.take_ms(), 0);  // the first
  while (wait.take_ms() == 0) std::this_thread::yield();
  over = true;
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace millrace
