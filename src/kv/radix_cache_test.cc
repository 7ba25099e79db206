// The published behaviour tables (match, insert, split, lock, evict, namespaces) as tests, and the tree drawn.
#include "kv/radix_cache.h"

#include <gtest/gtest.h>

#include "kv/testing/cache_fixture.h"
#include "kv/testing/draw_tree.h"

namespace millrace {
namespace {

using testing::draw_tree;
using testing::range;
using testing::Tokens;
using Fixture = testing::CacheFixture;

TEST(RadixCache, AnEmptyCacheMatchesNothing) {
  Fixture f(1);
  EXPECT_EQ(f.match({1, 2, 3}), 0);
  EXPECT_EQ(f.cache.match_prefix({}, {}).node, nullptr);
  EXPECT_EQ(f.cache.insert({}, {}, {}).node, nullptr);
  EXPECT_EQ(draw_tree(f.cache), "");
}

TEST(RadixCache, InsertThenMatch) {
  Fixture f(1);
  EXPECT_TRUE(f.insert({1, 2, 3}).duplicates.empty());
  EXPECT_EQ(f.cache.cached_pages(), 3);
  EXPECT_EQ(f.cache.evictable_pages(), 3);
  EXPECT_EQ(f.match({1, 2, 3}), 3);
  EXPECT_EQ(f.match({1, 2}), 2);
  EXPECT_EQ(f.match({9, 1, 2}), 0);
}

TEST(RadixCache, OneTokenIsAlwaysLeftToCompute) {
  for (int32_t page_size : {1, 4}) {
    Fixture f(page_size);
    f.insert(range(1, 8));
    const Tokens cached = range(1, 8);
    const MatchResult result = f.cache.match_prefix({}, cached);
    EXPECT_EQ(static_cast<int32_t>(result.pages.size()) * page_size, page_size == 1 ? 7 : 4);
    EXPECT_TRUE(f.cache.match_prefix({}, std::span(cached).first(1)).pages.empty());
  }
}

TEST(RadixCache, DuplicatesStayTheCallersAndTheCachesPagesStand) {
  Fixture f(2);
  const InsertResult first = f.insert({1, 2, 3, 4});
  const InsertResult second = f.insert({1, 2, 3, 4, 5, 6});
  ASSERT_EQ(second.pages.size(), 3u);
  EXPECT_EQ(second.pages[0], first.pages[0]);
  EXPECT_EQ(second.pages[1], first.pages[1]);
  EXPECT_EQ(second.duplicates.size(), 2u);
  EXPECT_EQ(f.cache.cached_pages(), 3);
  // The caller's own matched pages are no duplicates.
  const InsertResult third = f.cache.insert({}, Tokens{1, 2, 3, 4}, std::span(first.pages));
  EXPECT_TRUE(third.duplicates.empty());
}

// page size, length inserted, tokens matched: the page boundary table.
TEST(RadixCache, MatchesAreFullPages) {
  const int32_t table[][3] = {{1, 5, 5}, {2, 5, 4}, {4, 6, 4}, {4, 3, 0}, {16, 40, 32}};
  for (const auto& [page_size, length, matched] : table) {
    Fixture f(page_size);
    f.insert(range(1, length));
    EXPECT_EQ(f.match(range(1, length)), matched) << "page size " << page_size;
  }
}

TEST(RadixCache, ADivergingSequenceSplitsANode) {
  Fixture f(1);
  f.insert(range(1, 8));
  f.insert({1, 2, 9, 10});
  EXPECT_EQ(f.cache.cached_pages(), 10);
  EXPECT_EQ(draw_tree(f.cache),
            "key \"\" weights 0\n"
            "  [1 | 2] p0 p1\n"
            "    [3 | 4 | 5 | 6 | 7 | 8] p2 p3 p4 p5 p6 p7\n"
            "    [9 | 10] p10 p11\n");
  // A query that leaves in the middle of a node splits it and changes no content.
  EXPECT_EQ(f.match({1, 2, 3, 4, 999, 1000}), 4);
  EXPECT_EQ(f.cache.cached_pages(), 10);
  EXPECT_EQ(draw_tree(f.cache),
            "key \"\" weights 0\n"
            "  [1 | 2] p0 p1\n"
            "    [3 | 4] p2 p3\n"
            "      [5 | 6 | 7 | 8] p4 p5 p6 p7\n"
            "    [9 | 10] p10 p11\n");
  EXPECT_EQ(f.match(range(1, 8)), 8);
  EXPECT_EQ(f.match(range(1, 6)), 6);
  EXPECT_EQ(f.match({1, 2, 9, 10}), 4);
}

TEST(RadixCache, PeekingChangesNothing) {
  Fixture f(2);
  f.insert(range(1, 8));
  f.insert({1, 2, 50, 51});
  const std::string before = draw_tree(f.cache);
  EXPECT_EQ(f.cache.peek({}, Tokens{1, 2, 3, 4, 9, 9, 9}).pages, 2);  // ends inside a node
  EXPECT_EQ(f.cache.peek({}, range(1, 8)).pages, 3);                  // one token is left to compute
  EXPECT_EQ(f.cache.peek({}, {}).pages, 0);
  EXPECT_EQ(f.cache.peek({"other", 0}, range(1, 8)).pages, 0);
  EXPECT_EQ(draw_tree(f.cache), before);
  // The path looked at is still the one that was used longest ago.
  f.cache.evict(1);
  EXPECT_EQ(f.match(range(1, 8)), 6);
}

TEST(RadixCache, ASplitInsideAPageGoesBackToThePageBoundary) {
  Fixture f(4);
  f.insert(range(1, 12));
  EXPECT_EQ(f.match({1, 2, 3, 4, 5, 6, 99, 100, 101}), 4);
  f.insert({1, 2, 3, 4, 5, 6, 99, 100});
  EXPECT_EQ(draw_tree(f.cache),
            "key \"\" weights 0\n"
            "  [1 2 3 4] p0\n"
            "    [5 6 7 8 | 9 10 11 12] p1 p2\n"
            "    [5 6 99 100] p4\n");
}

TEST(RadixCache, NamespacesShareNothing) {
  Fixture f(1);
  f.insert({1, 2, 3}, {"key1", 0});
  f.insert({1, 2, 3}, {"key2", 0});
  f.insert({1, 2}, {"key1", 7});
  EXPECT_EQ(f.cache.cached_pages(), 8);
  EXPECT_EQ(f.match({1, 2, 3}, {"key1", 0}), 3);
  EXPECT_EQ(f.match({1, 2, 3}, {"key2", 0}), 3);
  EXPECT_EQ(f.match({1, 2, 3}, {"key1", 7}), 2);
  EXPECT_EQ(f.match({1, 2, 3}, {"", 0}), 0);
  EXPECT_EQ(f.match({1, 2, 3}, {"nonexistent", 0}), 0);
  EXPECT_EQ(f.cache.roots().size(), 3u);
  EXPECT_EQ(f.cache.evict(100), 8);
  EXPECT_TRUE(f.cache.roots().empty());  // an empty namespace costs nothing
}

// Every block hashes alike: only the comparison of tokens is left to distinguish them.
TEST(RadixCache, TokensAreComparedNotOnlyHashes) {
  Fixture f(2, 256, [](std::span<const int32_t>) -> uint64_t { return 42; });
  f.insert({1, 2, 3, 4});
  f.insert({5, 6, 3, 4});
  f.insert({1, 2, 7, 8});
  EXPECT_EQ(f.match({1, 2, 3, 4}), 4);
  EXPECT_EQ(f.match({5, 6, 3, 4}), 4);
  EXPECT_EQ(f.match({1, 2, 7, 8}), 4);
  EXPECT_EQ(f.match({3, 4, 1, 2}), 0);
  EXPECT_EQ(f.match({1, 3}), 0);
  EXPECT_EQ(f.cache.evict(100), 5);
  EXPECT_TRUE(f.cache.verify().ok());
}

TEST(RadixCache, ALockMovesItsPathBetweenEvictableAndLocked) {
  Fixture f(1);
  RadixNode* node = f.insert({1, 2, 3}).node;
  f.cache.lock(node);
  f.cache.lock(node);
  EXPECT_EQ(f.cache.locked_pages(), 3);
  EXPECT_EQ(f.cache.evictable_pages(), 0);
  EXPECT_EQ(f.cache.evict(3), 0);
  f.cache.unlock(node);
  EXPECT_EQ(f.cache.locked_pages(), 3);
  f.cache.unlock(node);
  EXPECT_EQ(f.cache.locked_pages(), 0);
  EXPECT_EQ(f.cache.evict(3), 3);
  f.cache.lock(nullptr);
  f.cache.unlock(nullptr);
  EXPECT_TRUE(f.cache.verify().ok());
}

TEST(RadixCache, ALockOutlivesASplitOfItsNode) {
  Fixture f(1);
  RadixNode* node = f.insert(range(1, 6)).node;
  f.cache.lock(node);
  f.insert({1, 2, 30});
  EXPECT_EQ(draw_tree(f.cache),
            "key \"\" weights 0\n"
            "  [1 | 2] p0 p1 *1\n"
            "    [3 | 4 | 5 | 6] p2 p3 p4 p5 *1\n"
            "    [30] p8\n");
  EXPECT_EQ(f.cache.evict(100), 1);
  f.cache.unlock(node);
  EXPECT_EQ(f.cache.evict(100), 6);
}

TEST(RadixCache, AMatchedPrefixCanBeLockedAloneAndItsTailEvicted) {
  Fixture f(1);
  f.insert(range(1, 6));
  const MatchResult match = f.cache.match_prefix({}, Tokens{1, 2, 3, 77});
  f.cache.lock(match.node);
  EXPECT_EQ(f.cache.locked_pages(), 3);
  EXPECT_EQ(f.cache.evict(100), 3);
  EXPECT_EQ(f.match(range(1, 6)), 3);
  f.cache.unlock(match.node);
}

TEST(RadixCache, EvictionFreesExactlyWhatIsAskedFromTheEndOfTheOldestPath) {
  Fixture f(1);
  f.insert(range(1, 5));
  f.insert(range(11, 15));
  f.match(range(1, 5));  // now the second path is the oldest
  EXPECT_EQ(f.cache.evict(2), 2);
  EXPECT_EQ(draw_tree(f.cache),
            "key \"\" weights 0\n"
            "  [1 | 2 | 3 | 4 | 5] p0 p1 p2 p3 p4\n"
            "  [11 | 12 | 13] p5 p6 p7\n");
  EXPECT_EQ(f.cache.evict(4), 4);
  EXPECT_EQ(draw_tree(f.cache),
            "key \"\" weights 0\n"
            "  [1 | 2 | 3 | 4] p0 p1 p2 p3\n");
  EXPECT_EQ(f.cache.evict(100), 4);
  EXPECT_EQ(f.cache.evict(1), 0);
  EXPECT_EQ(f.pool.free_count(), 256);
}

TEST(RadixCache, AParentIsEvictedOnlyAfterItsChildren) {
  Fixture f(1);
  f.insert({1, 2});
  f.insert({1, 2, 3});
  f.insert({1, 2, 4});
  f.insert({9});
  EXPECT_EQ(f.cache.evict(2), 2);  // [3], then [4]: the parent was used with each of them
  EXPECT_EQ(draw_tree(f.cache), "key \"\" weights 0\n  [1 | 2] p0 p1\n  [9] p2\n");
  EXPECT_EQ(f.cache.evict(2), 2);
  EXPECT_EQ(draw_tree(f.cache), "key \"\" weights 0\n  [9] p2\n");
}

// 10,000 sequences with a common prefix of 10,000 tokens and 100 of their own: the prefix is stored once, and the nodes
// hold less than twice the tokens that there are.
TEST(RadixCache, ACommonPrefixIsStoredOnce) {
  constexpr int32_t kSequences = 10000;
  Fixture f(10, 1000 + kSequences * 10 + 1010);
  Tokens tokens = range(1, 10000);
  for (int32_t i = 0; i < kSequences; ++i) {
    tokens.resize(10000);
    for (int32_t k = 0; k < 100; ++k) tokens.push_back(100000 + i * 100 + k);
    std::vector<PageId> pages;
    ASSERT_TRUE(f.pool.allocate(1010, pages));
    for (PageId page : f.cache.insert({}, tokens, pages).duplicates) {
      ASSERT_TRUE(f.pool.release(page, PageState::kHeld).ok());
    }
  }
  EXPECT_EQ(f.cache.cached_pages(), 1000 + kSequences * 10);
  EXPECT_EQ(f.cache.node_count(), kSequences + 1);
  std::size_t held = 0;
  std::vector<const RadixNode*> nodes = {f.cache.roots().begin()->second};
  while (!nodes.empty()) {
    const RadixNode* node = nodes.back();
    nodes.pop_back();
    held += node->tokens.capacity();
    for (const auto& [hash, child] : node->children) nodes.push_back(child);
  }
  EXPECT_LT(held, 2u * (10000 + kSequences * 100));
  EXPECT_TRUE(f.cache.verify().ok());
}

// A path of 4,000 nodes: locked, unlocked, verified, evicted and drawn without recursion.
TEST(RadixCache, ADeepPathStaysCorrect) {
  constexpr int32_t kLength = 4000;
  Fixture f(1, kLength);
  std::vector<PageId> pages;
  ASSERT_TRUE(f.pool.allocate(kLength, pages));
  const Tokens tokens(kLength, 5);
  RadixNode* deepest = f.cache.insert({}, tokens, pages).node;
  for (std::size_t length = kLength; length > 1; --length) {
    EXPECT_EQ(f.cache.match_prefix({}, std::span(tokens).first(length)).pages.size(), length - 1);
  }
  EXPECT_EQ(f.cache.node_count(), kLength);
  f.cache.lock(deepest);
  EXPECT_EQ(f.cache.evict(1), 0);
  f.cache.unlock(deepest);
  EXPECT_TRUE(f.cache.verify().ok());
  EXPECT_EQ(f.cache.evict(kLength - 1), kLength - 1);
  EXPECT_EQ(draw_tree(f.cache), "key \"\" weights 0\n  [5] p0\n");
}

TEST(RadixCacheDeathTest, UnlockingWhatIsNotLockedIsAProgrammerError) {
  Fixture f(1);
  RadixNode* node = f.insert({1}).node;
  EXPECT_DEATH(f.cache.unlock(node), "locks > 0");
}

}  // namespace
}  // namespace millrace
