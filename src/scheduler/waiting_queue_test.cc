#include "scheduler/waiting_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>

#include "scheduler/share.h"

namespace millrace {
namespace {

class Queue {
 public:
  explicit Queue(int32_t max_skips) : queue(max_skips) {}
  Sequence& add(uint64_t arrival) {
    all.push_back(std::make_unique<Sequence>());
    all.back()->arrival = arrival;
    queue.push(*all.back());
    return *all.back();
  }
  // Offers to all; those for which `fits` holds are admitted.
  template <typename F>
  std::vector<uint64_t> offer(F fits) {
    std::vector<uint64_t> admitted;
    queue.offer([&](Sequence& sequence) {
      if (!fits(sequence.arrival)) return Admission::kNoRoom;
      admitted.push_back(sequence.arrival);
      return Admission::kAdmitted;
    });
    return admitted;
  }
  WaitingQueue queue;
  std::vector<std::unique_ptr<Sequence>> all;
};

TEST(WaitingQueue, FirstComeFirstServed) {
  Queue q(4);
  for (uint64_t arrival : {3, 1, 2}) q.add(arrival);
  EXPECT_EQ(q.offer([](uint64_t) { return true; }), (std::vector<uint64_t>{1, 2, 3}));
  EXPECT_TRUE(q.queue.empty());
}

// Invariant: bounded skip-over.
TEST(WaitingQueue, AtMostMaxSkipsPassAWaitingRequest) {
  Queue q(3);
  Sequence& big = q.add(0);
  for (uint64_t arrival = 1; arrival <= 10; ++arrival) q.add(arrival);
  const auto small_only = [](uint64_t arrival) { return arrival != 0; };
  EXPECT_EQ(q.offer(small_only), (std::vector<uint64_t>{1, 2, 3}));
  EXPECT_EQ(big.queue.skips, 3);
  EXPECT_EQ(q.offer(small_only), std::vector<uint64_t>{});  // now it holds up the others
  EXPECT_EQ(q.offer([](uint64_t) { return true; }).front(), 0u);
  EXPECT_TRUE(q.queue.empty());
}

TEST(WaitingQueue, WithoutSkipsItIsStrictlyFirstComeFirstServed) {
  Queue q(0);
  q.add(0), q.add(1);
  EXPECT_TRUE(q.offer([](uint64_t arrival) { return arrival == 1; }).empty());
}

TEST(WaitingQueue, TheBoundHoldsInRandomPasses) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 200; ++round) {
    const auto max_skips = static_cast<int32_t>(random() % 6);
    Queue q(max_skips);
    std::map<uint64_t, int32_t> passed_by;  // counted here, from the outside
    std::vector<uint64_t> waiting;
    uint64_t next = 0;
    for (int pass = 0; pass < 60; ++pass) {
      for (uint64_t k = random() % 4; k > 0; --k) {
        waiting.push_back(next);
        q.add(next++);
      }
      for (uint64_t admitted : q.offer([&](uint64_t arrival) { return (arrival + random()) % 3 == 0; })) {
        std::erase(waiting, admitted);
        for (uint64_t other : waiting) {
          if (other > admitted) continue;
          ASSERT_LE(++passed_by[other], max_skips);
        }
      }
    }
    ASSERT_EQ(q.queue.size(), static_cast<int32_t>(waiting.size()));
  }
}

TEST(WaitingQueue, APassLooksAtABoundedNumber) {
  Queue q(1000000);
  for (uint64_t arrival = 0; arrival < 500; ++arrival) q.add(arrival);
  int looked = 0;
  q.queue.offer([&](Sequence&) {
    ++looked;
    return Admission::kNoRoom;
  });
  EXPECT_EQ(looked, kSkipWindow);
}

TEST(SharePrefill, HalfForTheOldestHalfForTheShortest) {
  using Shares = std::vector<int32_t>;
  EXPECT_EQ(share_prefill(Shares{}, 10), Shares{});
  EXPECT_EQ(share_prefill(Shares{100}, 10), Shares{10});
  EXPECT_EQ(share_prefill(Shares{4}, 10), Shares{4});
  EXPECT_EQ(share_prefill(Shares{100, 100}, 10), (Shares{10, 0}));
  EXPECT_EQ(share_prefill(Shares{100, 99}, 10), (Shares{5, 5}));
  EXPECT_EQ(share_prefill(Shares{60, 2, 99}, 10), (Shares{8, 2, 0}));
  EXPECT_EQ(share_prefill(Shares{100, 50, 3}, 10), (Shares{5, 2, 3}));
  EXPECT_EQ(share_prefill(Shares{100, 1, 1}, 10), (Shares{8, 1, 1}));
  EXPECT_EQ(share_prefill(Shares{2, 100}, 10), (Shares{2, 8}));
  EXPECT_EQ(share_prefill(Shares{100, 100}, 1), (Shares{1, 0}));
  EXPECT_EQ(share_prefill(Shares{100, 100}, 0), (Shares{0, 0}));
}

TEST(SharePrefill, SpendsTheWholeBudgetAndNeverMore) {
  std::mt19937_64 random(9);
  for (int round = 0; round < 2000; ++round) {
    std::vector<int32_t> remaining(random() % 9);
    int64_t sum = 0;
    for (int32_t& left : remaining) sum += left = 1 + static_cast<int32_t>(random() % 60);
    const auto budget = static_cast<int32_t>(random() % 200);
    const std::vector<int32_t> shares = share_prefill(remaining, budget);
    int64_t spent = 0;
    for (std::size_t i = 0; i < shares.size(); ++i) {
      ASSERT_TRUE(shares[i] >= 0 && shares[i] <= remaining[i]);
      spent += shares[i];
    }
    ASSERT_EQ(spent, std::min<int64_t>(sum, budget));
    if (shares.empty()) continue;
    ASSERT_GE(shares[0], std::min(remaining[0], budget / 2));
  }
}

TEST(SharePrefill, ThoseThatGoOnAreCutBesideThoseThatEnd) {
  using Shares = std::vector<int32_t>;
  const auto cut = [](const Shares& remaining, int32_t decodes, Shares shares) {
    cut_beside_ends(remaining, decodes, shares);
    return shares;
  };
  EXPECT_EQ(cut({}, 3, {}), Shares{});
  EXPECT_EQ(cut({1000, 900}, 3, {256, 256}), (Shares{256, 256}));               // none ends
  EXPECT_EQ(cut({16, 16}, 3, {16, 16}), (Shares{16, 16}));                      // all end
  EXPECT_EQ(cut({1000, 16}, 3, {496, 16}), (Shares{64, 16}));                   // the minimum
  EXPECT_EQ(cut({1000, 16}, 3, {20, 16}), (Shares{20, 16}));                    // had less
  EXPECT_EQ(cut({1000, 100, 60}, 10, {352, 100, 60}), (Shares{170, 100, 60}));  // as many as the others
  EXPECT_EQ(cut({1000, 16, 900}, 3, {256, 16, 240}), (Shares{64, 16, 0}));      // the oldest first
  EXPECT_EQ(cut({1000, 100, 900}, 0, {60, 100, 240}), (Shares{60, 100, 40}));
}

}  // namespace
}  // namespace millrace
