// BoundedQueue: nothing lost, nothing twice, nothing over the bound, whatever the threads do.
#include "base/bounded_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

namespace millrace {
namespace {

using Clock = std::chrono::steady_clock;

int64_t elapsed_ms(Clock::time_point since) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - since).count();
}

TEST(BoundedQueue, FirstInFirstOut) {
  BoundedQueue<int> queue(3);
  for (int i : {1, 2, 3}) EXPECT_TRUE(queue.push(std::move(i)).ok());
  EXPECT_EQ(queue.size(), 3u);
  for (int i : {1, 2, 3}) EXPECT_EQ(queue.pop(0), i);
  EXPECT_EQ(queue.pop(0), std::nullopt);
}

TEST(BoundedQueue, AFullQueueRefusesAndLeavesTheItem) {
  BoundedQueue<std::unique_ptr<int>> queue(1);
  EXPECT_TRUE(queue.push(std::make_unique<int>(1)).ok());
  auto kept = std::make_unique<int>(2);
  const Status full = queue.push(std::move(kept));
  EXPECT_EQ(full.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(full.message().find("1 of 1"), std::string::npos) << full.message();
  ASSERT_NE(kept, nullptr);
  EXPECT_EQ(**queue.pop(0), 1);
  EXPECT_TRUE(queue.push(std::move(kept)).ok());
  EXPECT_EQ(kept, nullptr);
}

TEST(BoundedQueue, ClosedQueueGivesOutWhatItHolds) {
  BoundedQueue<std::unique_ptr<int>> queue(4);
  EXPECT_TRUE(queue.push(std::make_unique<int>(1)).ok());
  EXPECT_FALSE(queue.closed());
  queue.close();
  EXPECT_TRUE(queue.closed());
  auto late = std::make_unique<int>(2);
  EXPECT_EQ(queue.push(std::move(late)).code(), StatusCode::kUnavailable);
  EXPECT_NE(late, nullptr);
  EXPECT_TRUE(queue.pop(-1).has_value());
  EXPECT_FALSE(queue.pop(-1).has_value());  // does not wait for ever
}

TEST(BoundedQueue, WaitsAsLongAsAsked) {
  BoundedQueue<int> queue(1);
  auto start = Clock::now();
  EXPECT_EQ(queue.pop(40), std::nullopt);
  EXPECT_GE(elapsed_ms(start), 40);
  start = Clock::now();
  std::thread producer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_TRUE(queue.push(5).ok());
  });
  EXPECT_EQ(queue.pop(240'000), 5);
  EXPECT_LT(elapsed_ms(start), 120'000);
  producer.join();
}

TEST(BoundedQueue, CloseWakesEveryWaiter) {
  BoundedQueue<int> queue(1);
  std::vector<std::thread> waiters;
  for (int i = 0; i < 3; ++i) waiters.emplace_back([&] { EXPECT_EQ(queue.pop(-1), std::nullopt); });
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  queue.close();
  for (std::thread& waiter : waiters) waiter.join();
}

// Three producers and three consumers over four places: each item arrives once, and one producer's items in its order.
TEST(BoundedQueue, ManyThreadsLoseAndDoubleNothing) {
  constexpr int kThreads = 3, kEach = 4000;
  constexpr std::size_t kCapacity = 4;
  struct Item {
    int producer, number;
  };
  BoundedQueue<Item> queue(kCapacity);
  std::vector<std::vector<Item>> taken(kThreads);
  std::vector<std::thread> consumers, producers;
  std::atomic<bool> over{false};
  for (auto& mine : taken) {
    consumers.emplace_back([&queue, &mine, &over] {
      while (auto item = queue.pop(-1)) {
        if (queue.size() > kCapacity) over = true;
        mine.push_back(*item);
      }
    });
  }
  for (int p = 0; p < kThreads; ++p) {
    producers.emplace_back([&queue, p] {
      for (int i = 0; i < kEach; ++i) {
        while (!queue.push({p, i}).ok()) std::this_thread::yield();
      }
    });
  }
  for (std::thread& producer : producers) producer.join();
  queue.close();
  for (std::thread& consumer : consumers) consumer.join();

  std::vector<std::vector<int>> seen(kThreads, std::vector<int>(kEach, 0));
  for (const auto& mine : taken) {
    std::vector<int> last(kThreads, -1);
    for (const Item& item : mine) {
      ++seen[static_cast<std::size_t>(item.producer)][static_cast<std::size_t>(item.number)];
      EXPECT_GT(item.number, last[static_cast<std::size_t>(item.producer)]);
      last[static_cast<std::size_t>(item.producer)] = item.number;
    }
  }
  for (const auto& producer : seen) {
    for (int times : producer) ASSERT_EQ(times, 1);
  }
  EXPECT_FALSE(over.load());
}

}  // namespace
}  // namespace millrace
