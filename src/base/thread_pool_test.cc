#include "base/thread_pool.h"

#include <gtest/gtest.h>
#include <time.h>

#include <chrono>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

namespace millrace {
namespace {

TEST(ThreadPool, EveryIterationRunsExactlyOnce) {
  for (int threads : {1, 2, 3, 4, 7}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.size(), threads);
    for (int64_t count : {0, 1, 2, 7, 64, 1000}) {
      for (int64_t grain : {1, 3, 64, 5000}) {
        std::vector<int> hits(static_cast<std::size_t>(count), 0);  // plain ints: TSan sees a double visit
        pool.parallel_for(count, grain, [&](int64_t begin, int64_t end, int worker) {
          ASSERT_EQ(begin % grain, 0);
          ASSERT_LE(end - begin, grain);
          ASSERT_LT(begin, end);
          ASSERT_GE(worker, 0);
          ASSERT_LT(worker, threads);
          for (int64_t i = begin; i < end; ++i) ++hits[static_cast<std::size_t>(i)];
        });
        for (int hit : hits) ASSERT_EQ(hit, 1);
      }
    }
  }
}

TEST(ThreadPool, WorkerIndexIsNeverSharedAtOneTime) {
  ThreadPool pool(4);
  std::vector<int> scratch(4, 0);  // unsynchronised on purpose: a shared index is a data race
  int64_t total = 0;
  for (int round = 0; round < 200; ++round) {
    pool.parallel_for(97, 2, [&](int64_t begin, int64_t end, int worker) {
      scratch[static_cast<std::size_t>(worker)] += static_cast<int>(end - begin);
    });
    total += 97;
  }
  EXPECT_EQ(scratch[0] + scratch[1] + scratch[2] + scratch[3], total);
}

TEST(ThreadPool, ManyShortLoopsBackToBackAndAfterSleep) {
  ThreadPool pool(3);
  int64_t sum = 0;
  for (int round = 0; round < 3000; ++round) {
    if (round % 500 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));  // workers are parked by now
    int64_t values[8] = {};
    pool.parallel_for(8, 1, [&](int64_t begin, int64_t, int) { values[begin] = begin + round; });
    for (int64_t v : values) sum += v;
  }
  int64_t expected = 0;
  for (int64_t round = 0; round < 3000; ++round) expected += 28 + 8 * round;
  EXPECT_EQ(sum, expected);
}

// Also inside one long loop: a chunk that is taken is seen by whoever watches.
TEST(ThreadPool, MotionChangesWithEveryChunk) {
  for (int threads : {1, 2}) {
    ThreadPool pool(threads);
    std::set<uint64_t> seen = {pool.motion()};
    EXPECT_EQ(pool.motion(), *seen.begin());  // and stands still between loops
    for (int loop = 0; loop < 3; ++loop) {
      std::mutex mutex;
      pool.parallel_for(4, 1, [&](int64_t begin, int64_t, int worker) {
        if (worker != 0) return;
        std::lock_guard lock(mutex);
        const bool changed = seen.insert(pool.motion()).second;
        EXPECT_TRUE(changed || threads > 1) << "chunk " << begin;
      });
      seen.insert(pool.motion());
    }
    EXPECT_GE(seen.size(), 4u);
  }
}

TEST(ThreadPool, OtherThreadsTakePart) {
  ThreadPool pool(2);
  std::mutex mutex;
  std::set<std::thread::id> ids;
  // Each chunk blocks until two distinct threads were seen or two minutes have passed.
  pool.parallel_for(2, 1, [&](int64_t, int64_t, int) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(2);
    do {
      {
        std::lock_guard lock(mutex);
        ids.insert(std::this_thread::get_id());
        if (ids.size() == 2) return;
      }
      std::this_thread::yield();
    } while (std::chrono::steady_clock::now() < deadline);
  });
  EXPECT_EQ(ids.size(), 2u);
}

// From some time on: on a busy machine the threads come to their rest late. Threads that spin never do.
TEST(ThreadPool, IdlePoolUsesNoCpu) {
  ThreadPool pool(4);
  pool.parallel_for(100, 1, [](int64_t, int64_t, int) {});
  const auto used_ms = [] {
    timespec time{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return 1e3 * static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_nsec);
  };
  for (int i = 0; i < 300; ++i) {
    const double before = used_ms();
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    if (used_ms() - before < 20) return;  // one spinning thread would use as much on a tenth of a core
  }
  FAIL() << "the pool's threads never rest";
}

TEST(ThreadPool, MakingAndDroppingPoolsInEveryState) {
  for (int i = 0; i < 50; ++i) {
    ThreadPool pool(1 + i % 5);
    if (i % 2) pool.parallel_for(16, 1, [](int64_t, int64_t, int) {});
  }
}

TEST(ThreadPoolDeathTest, LoopInsideALoop) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        ThreadPool pool(1);
        pool.parallel_for(1, 1, [&](int64_t, int64_t, int) { pool.parallel_for(1, 1, [](int64_t, int64_t, int) {}); });
      },
      "busy_");
}

}  // namespace
}  // namespace millrace
