// The published orders of the eviction strategies, and what eviction costs.
#include <gtest/gtest.h>

#include <bit>
#include <string>

#include "kv/testing/cache_fixture.h"

namespace millrace {
namespace {

using testing::range;
using testing::Tokens;
using Fixture = testing::CacheFixture;

// Sequences of one page each, by letter. The history: a, b, c, d are inserted in this order, with priorities 2, 0, 1,
// 0; then c and a are used again, a twice, and b once at the end.
class History {
 public:
  explicit History(EvictionStrategy strategy) : fixture_(1, 16, 0, {.eviction = strategy}) {
    insert('a', 2), insert('b', 0), insert('c', 1), insert('d', 0);
    use('a'), use('c'), use('a'), use('b');
  }

  // The letters in the order in which they go.
  std::string eviction_sequence() {
    std::string result;
    while (fixture_.cache.evict(1) == 1) {
      for (char letter : std::string("abcd")) {
        if (result.find(letter) == std::string::npos && fixture_.peek({letter}) == "0+0") result += letter;
      }
    }
    return result;
  }

 private:
  void insert(char letter, int32_t priority) { fixture_.insert({letter}, {}, priority); }
  void use(char letter) {
    RadixNode* node = fixture_.cache.match_prefix({}, Tokens{letter, -7}).node;
    fixture_.cache.lock(node);
    fixture_.cache.count_use(node, 0);
    fixture_.cache.unlock(node);
  }

  Fixture fixture_;
};

TEST(EvictionStrategies, FollowTheirTuples) {
  const std::pair<EvictionStrategy, const char*> table[] = {
      {EvictionStrategy::kLru, "dcab"},       // last use: d, c, a, b
      {EvictionStrategy::kLfu, "dcba"},       // uses: d 1, c 2, b 2 (later), a 3
      {EvictionStrategy::kFifo, "abcd"},      // creation
      {EvictionStrategy::kMru, "bacd"},       // the last use backwards
      {EvictionStrategy::kFilo, "dcba"},      // creation backwards
      {EvictionStrategy::kPriority, "dbca"},  // 0: d before b; then 1, then 2
      {EvictionStrategy::kSlru, "dcab"},      // d was used once; the others by last use
  };
  for (const auto& [strategy, sequence] : table) {
    EXPECT_EQ(History(strategy).eviction_sequence(), sequence) << eviction_strategy_name(strategy);
  }
}

// One that two requests used outlives one that was used later, but once.
TEST(EvictionStrategies, SlruProtectsWhatWasUsedTwice) {
  Fixture f(1, 16, 0, {.eviction = EvictionStrategy::kSlru});
  f.insert({1}), f.insert({1});
  f.insert({2}), f.insert({3});
  f.cache.evict(2);
  EXPECT_EQ(f.peek({1}), "1+0");
}

// A node's priority is the largest of the requests that inserted it, and a prefix is worth what its continuations are.
TEST(EvictionStrategies, APriorityLiftsTheCompletePath) {
  Fixture f(1, 16, 0, {.eviction = EvictionStrategy::kPriority});
  f.insert({1, 2}, {}, 0);
  f.insert({9, 9}, {}, 3);
  f.insert({1, 2, 3}, {}, 5);
  f.insert({1, 2, 4}, {}, -1);
  f.cache.evict(1);
  EXPECT_EQ(f.peek({1, 2, 4}), "2+0");
  f.cache.evict(2);
  EXPECT_EQ(f.peek({9, 9}), "0+0");
  EXPECT_EQ(f.peek({1, 2, 3}), "3+0");
}

TEST(EvictionStrategies, EveryStrategyTakesAPathFromItsEnd) {
  for (int i = 0; i < 7; ++i) {
    Fixture f(4, 16, 0, {.eviction = static_cast<EvictionStrategy>(i)});
    f.insert(range(1, 32));
    f.cache.evict(3);
    EXPECT_EQ(f.match(range(1, 32)), 20) << i;
  }
}

// The cost of eviction is counted in comparisons of the eviction order. It is bounded by the logarithm of the leaves
// for each page that goes, however many leaves there are.
TEST(EvictionCost, GrowsWithTheLogarithmOfTheLeaves) {
  for (int i = 0; i < 7; ++i) {
    for (int32_t leaves : {64, 1024, 16384}) {
      Fixture f(1, leaves, 0, {.eviction = static_cast<EvictionStrategy>(i)});
      for (int32_t leaf = 0; leaf < leaves; ++leaf) {
        std::vector<PageId> page;
        ASSERT_TRUE(f.pool.allocate(1, page));
        f.cache.insert({}, Tokens{leaf}, page);
      }
      const uint64_t depth = static_cast<uint64_t>(std::bit_width(static_cast<uint32_t>(leaves)));
      const uint64_t before = f.cache.eviction_comparisons();
      constexpr int kEvictions = 32;
      for (int n = 0; n < kEvictions; ++n) ASSERT_EQ(f.cache.evict(1), 1);
      // A pop goes down: four comparisons for each level, and a level is two bits of the number of leaves.
      EXPECT_LE(f.cache.eviction_comparisons() - before, kEvictions * 2 * depth) << leaves;
      const uint64_t used = f.cache.eviction_comparisons();
      for (int n = 0; n < kEvictions; ++n) f.cache.match_prefix({}, Tokens{leaves / 2 + n, -7});
      EXPECT_LE(f.cache.eviction_comparisons() - used, kEvictions * 2 * (depth + 1)) << leaves;
    }
  }
}

}  // namespace
}  // namespace millrace
