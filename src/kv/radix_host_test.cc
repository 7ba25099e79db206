// The host tier: what is copied there and when, and how it comes back. "3+2" below: three pages match in the pool, two
// more on the host.
#include <gtest/gtest.h>

#include <string>

#include "kv/testing/cache_fixture.h"

namespace millrace {
namespace {

using testing::range;
using testing::Tokens;
using Fixture = testing::CacheFixture;

CacheOptions with(WritePolicy policy) { return {.write_policy = policy}; }

// ">3" is page 3 to its host page, "<3" back.
std::string take_copies(RadixCache& cache) {
  std::string text;
  for (const PageCopy& copy : cache.take_copies()) {
    text += (copy.direction == CopyDirection::kToHost ? ">" : "<") + std::to_string(copy.page.value);
  }
  return text;
}

TEST(HostTier, WriteThroughCopiesAtOnceAndOnlyOnce) {
  Fixture f(1, 8, 8, with(WritePolicy::kWriteThrough));
  f.insert({1, 2, 3});
  EXPECT_EQ(take_copies(f.cache), ">0>1>2");
  f.insert({1, 2, 3, 4});
  EXPECT_EQ(f.cache.host_pages(), 4);
  EXPECT_EQ(take_copies(f.cache).size(), 2u);
  EXPECT_EQ(f.cache.evict(8), 4);
  EXPECT_EQ(take_copies(f.cache), "");
  EXPECT_EQ(f.peek({1, 2, 3, 4}), "0+4");
  EXPECT_EQ(f.pool.free_count(), 8);
}

TEST(HostTier, SelectiveCopiesAtTheSecondUse) {
  Fixture f(1, 8, 8, with(WritePolicy::kWriteThroughSelective));
  f.insert({1, 2, 3});
  EXPECT_EQ(take_copies(f.cache), "");
  f.insert({1, 2, 9});
  EXPECT_EQ(take_copies(f.cache), ">0>1");  // the part that both have
  f.cache.evict(8);
  EXPECT_EQ(f.peek({1, 2, 3}), "0+2");
}

TEST(HostTier, WriteBackCopiesOnEvictionAndThePathAbove) {
  Fixture f(1, 8, 8, with(WritePolicy::kWriteBack));
  f.insert({1, 2});
  f.insert({1, 2, 3, 4});
  EXPECT_EQ(take_copies(f.cache), "");
  EXPECT_EQ(f.cache.evict(1), 1);
  EXPECT_EQ(f.cache.host_pages(), 4);  // together with the root, so that it can be found
  EXPECT_EQ(f.peek({1, 2, 3, 4}), "3+1");
  take_copies(f.cache);
  EXPECT_EQ(f.cache.evict(8), 3);
  EXPECT_EQ(take_copies(f.cache), "");
  EXPECT_EQ(f.peek({1, 2, 3, 4}), "0+4");
}

TEST(HostTier, AMatchGoesOnIntoTheHostAndLoadBringsItBack) {
  Fixture f(2, 8, 8, with(WritePolicy::kWriteThrough));
  f.insert(range(1, 10));
  take_copies(f.cache);
  f.cache.evict(3);
  const MatchResult match = f.cache.match_prefix({}, range(1, 9));
  EXPECT_EQ(match.pages.size(), 2u);
  EXPECT_EQ(match.host_pages, 2);
  f.cache.lock(match.host_node);
  std::vector<PageId> pages;
  ASSERT_TRUE(f.pool.allocate(2, pages));
  f.cache.load(match.host_node, pages);
  EXPECT_EQ(f.cache.locked_pages(), 4);
  EXPECT_TRUE(f.cache.verify().ok()) << f.cache.verify().to_string();
  const std::vector<PageCopy> copies = f.cache.take_copies();
  ASSERT_EQ(copies.size(), 2u);
  EXPECT_EQ(copies[0].direction, CopyDirection::kFromHost);
  EXPECT_EQ(copies[0].page, pages[0]);
  EXPECT_EQ(f.peek(range(1, 10)), "4+1");
  EXPECT_EQ(f.cache.counters(), (CacheCounters{.evicted = 3, .host_evicted = 0, .backed_up = 5, .loaded = 2}));
  EXPECT_EQ(f.cache.evict(8), 0);
  f.cache.unlock(match.host_node);
  EXPECT_EQ(f.cache.evict(8), 4);
}

// What was computed again while it lay on the host comes into the pool without a copy.
TEST(HostTier, AnInsertBringsHostPagesBackWithTheInsertedBytes) {
  Fixture f(1, 8, 8, with(WritePolicy::kWriteThrough));
  f.insert({1, 2, 3});
  f.cache.evict(2);
  take_copies(f.cache);
  const InsertResult again = f.insert({1, 2, 3});
  EXPECT_EQ(again.duplicates.size(), 1u);  // page 1 was in the pool
  EXPECT_EQ(take_copies(f.cache), "");
  EXPECT_EQ(f.peek({1, 2, 3}), "3+0");
  EXPECT_EQ(f.cache.host_pages(), 3);
}

TEST(HostTier, AFullHostTierEvictsByTheStrategyAndNeverThePathItself) {
  Fixture f(1, 16, 4, with(WritePolicy::kWriteThrough));
  f.insert({1, 2, 3});
  f.insert({5, 6});
  EXPECT_EQ(f.cache.host_pages(), 4);
  f.cache.evict(16);
  EXPECT_EQ(f.peek({5, 6}), "0+2");
  EXPECT_EQ(f.peek({1, 2, 3}), "0+2");
  f.insert(range(20, 29));  // longer than the host tier: as much of its beginning as fits
  f.cache.evict(16);
  EXPECT_EQ(f.peek(range(20, 29)), "0+4");
  EXPECT_EQ(f.peek({5, 6}), "0+0");
  EXPECT_EQ(f.host.books().free(), 0);
  EXPECT_EQ(f.cache.counters().host_evicted, 5u);  // one of the first path, then all of both but the new one's
}

TEST(HostTier, LockedPathsKeepTheirHostPages) {
  Fixture f(1, 16, 3, with(WritePolicy::kWriteThrough));
  RadixNode* node = f.insert({1, 2, 3}).node;
  f.cache.lock(node);
  f.insert({5, 6});
  EXPECT_EQ(f.cache.host_pages(), 3);
  f.cache.unlock(node);
  f.cache.evict(16);
  EXPECT_EQ(f.peek({1, 2, 3}), "0+3");
  EXPECT_EQ(f.peek({5, 6}), "0+0");
}

TEST(HostTier, CopiesThatWereRefusedComeFirst) {
  Fixture f(1, 8, 8, with(WritePolicy::kWriteThrough));
  f.insert({1});
  std::vector<PageCopy> copies = f.cache.take_copies();
  f.insert({2});
  f.cache.return_copies(std::move(copies));
  EXPECT_EQ(take_copies(f.cache), ">0>1");
}

TEST(HostTier, DroppingLeavesOnlyWhatIsLocked) {
  Fixture f(1, 16, 16, with(WritePolicy::kWriteThrough));
  RadixNode* node = f.insert({1, 2}, {"", 3}).node;
  f.insert({1, 2, 3, 4}, {"", 3});
  f.insert({1, 2}, {"", 4});
  f.insert({7}, {"", 3});
  f.cache.lock(node);
  EXPECT_EQ(f.cache.drop_unlocked(4), 3);
  EXPECT_EQ(f.peek({1, 2, 3, 4}, {"", 3}), "2+0");
  EXPECT_EQ(f.peek({1, 2}, {"", 4}), "2+0");
  EXPECT_EQ(f.cache.drop_unlocked(), 2);
  f.cache.unlock(node);
  EXPECT_EQ(f.cache.drop_unlocked(), 2);
  EXPECT_EQ(f.host.free_count(), 16);
  EXPECT_TRUE(f.cache.roots().empty());
}

TEST(HostTier, DroppingAVersionLeavesTheOthers) {
  Fixture f(1, 16, 16, with(WritePolicy::kWriteThrough));
  RadixNode* node = f.insert({1, 2}, {"", 3}).node;
  f.insert({7}, {"salt", 3});
  f.insert({1, 2}, {"", 4});
  EXPECT_FALSE(f.cache.locks_version(3));
  f.cache.lock(node);
  EXPECT_TRUE(f.cache.locks_version(3));
  EXPECT_FALSE(f.cache.locks_version(4));
  EXPECT_EQ(f.cache.drop_version(3), 1);
  EXPECT_EQ(f.peek({1, 2}, {"", 3}), "2+0");
  f.cache.unlock(node);
  EXPECT_EQ(f.cache.drop_version(3), 2);
  EXPECT_EQ(f.peek({1, 2}, {"", 3}), "0+0");
  EXPECT_EQ(f.peek({1, 2}, {"", 4}), "2+0");
  EXPECT_EQ(f.host.free_count(), 14);
}

}  // namespace
}  // namespace millrace
