// The radix tree as people see it: which nodes, where each begins, and which pages are in use.
#include "kv/cache_summary.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "kv/testing/cache_fixture.h"

namespace millrace {
namespace {

using testing::range;
using testing::Tokens;
using Fixture = testing::CacheFixture;

Tokens joined(Tokens first, const Tokens& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

TEST(CacheSummary, AnEmptyCacheHasNone) {
  Fixture f(2);
  EXPECT_TRUE(summarize(f.cache).nodes.empty());
}

TEST(CacheSummary, EachNodeBeginsWhereItsParentEnds) {
  Fixture f(2);
  f.insert(joined(range(1, 8), range(100, 103)));
  f.insert(joined(range(1, 8), range(200, 205)), {});
  f.insert(range(1, 4), {"salt", 3});
  const CacheSummary summary = summarize(f.cache);
  EXPECT_EQ(summary.nodes_total, 4);
  int32_t tokens = 0, roots = 0, salted = 0;
  for (std::size_t i = 0; i < summary.nodes.size(); ++i) {
    const SummaryNode& node = summary.nodes[i];
    tokens += node.tokens;
    if (node.parent < 0) {
      ++roots;
      salted += node.has_extra_key;
      EXPECT_EQ(node.weight_version, node.has_extra_key ? 3u : 0u);
      EXPECT_EQ(node.begin + node.tokens, 0);
      continue;
    }
    ASSERT_LT(node.parent, static_cast<int32_t>(i));
    const SummaryNode& parent = summary.nodes[static_cast<std::size_t>(node.parent)];
    EXPECT_EQ(node.begin, parent.begin + parent.tokens);
  }
  EXPECT_EQ(roots, 2);
  EXPECT_EQ(salted, 1);
  EXPECT_EQ(tokens, 8 + 4 + 6 + 4);
}

TEST(CacheSummary, TheNodesUsedLastAreShown) {
  const auto prompts = static_cast<int32_t>(kMaxSummaryNodes) + 50;
  Fixture f(1, 1000);
  for (int32_t i = 0; i < prompts; ++i) f.insert({1000 + i, 5000 + i});
  f.match({1000, 5000});  // the oldest is the newest now
  const CacheSummary summary = summarize(f.cache);
  EXPECT_EQ(summary.nodes.size(), kMaxSummaryNodes);
  EXPECT_EQ(summary.nodes_total, prompts);
  uint64_t oldest_shown = UINT64_MAX;
  bool first_prompt = false;
  for (const SummaryNode& node : summary.nodes) {
    if (node.parent < 0) continue;
    first_prompt = first_prompt || node.serial == f.cache.roots().begin()->second->serial + 1;
    if (node.serial != f.cache.roots().begin()->second->serial + 1) oldest_shown = std::min(oldest_shown, node.serial);
  }
  EXPECT_TRUE(first_prompt);
  EXPECT_EQ(oldest_shown, static_cast<uint64_t>(prompts) - (kMaxSummaryNodes - 2) + 1);
}

TEST(CacheSummary, DepthHasALimit) {
  Fixture f(1, 4096);
  Tokens prompt;
  for (int32_t i = 0; i < 2 * kMaxSummaryDepth; ++i) {
    prompt.push_back(i);
    f.insert(prompt);
    f.insert(joined(prompt, {9000}));  // so that it stays a node of its own
  }
  for (const SummaryNode& node : summarize(f.cache).nodes) EXPECT_LT(node.begin, kMaxSummaryDepth);
}

TEST(CacheSummary, LockedNodesMarkTheirPages) {
  Fixture f(2);
  const InsertResult first = f.insert(joined(range(1, 8), range(100, 103)));
  f.insert(joined(range(1, 8), range(200, 205)));
  std::string map(256, '.');
  mark_locked_pages(f.cache, 'r', map);
  EXPECT_EQ(std::ranges::count(map, 'r'), 0);
  f.cache.lock(first.node);
  mark_locked_pages(f.cache, 'r', map);
  EXPECT_EQ(std::ranges::count(map, 'r'), f.cache.locked_pages());
  for (const PageId page : first.pages) EXPECT_EQ(map[static_cast<std::size_t>(page.value)], 'r');
  int locked = 0;
  for (const SummaryNode& node : summarize(f.cache).nodes) locked += node.locked && node.parent >= 0;
  EXPECT_EQ(locked, 2);
  f.cache.unlock(first.node);
}

}  // namespace
}  // namespace millrace
