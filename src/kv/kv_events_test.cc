// KV events and the hashes in them, against what Python computes (tests/oracles/kv_hashes.py).
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "kv/block_hash.h"
#include "kv/testing/cache_fixture.h"

namespace millrace {
namespace {

using testing::range;
using testing::Tokens;
using Fixture = testing::CacheFixture;

nlohmann::json golden() {
  std::ifstream file(std::string(MILLRACE_SOURCE_DIR) + "/tests/golden/kv/hashes.json");
  return nlohmann::json::parse(file);
}

constexpr CacheOptions kEvents = {.events = true};

TEST(BlockHash, SipHashIsThatOfCPython) {
  const nlohmann::json file = golden();
  for (const auto& row : file.at("siphash")) {
    const auto tokens = row.at("tokens").get<Tokens>();
    EXPECT_EQ(static_cast<int64_t>(siphash13(tokens, 0, 0)), row.at("hash").get<int64_t>()) << row;
  }
  // Another key gives another hash; the process's own stays the same.
  EXPECT_NE(siphash13(range(1, 4), 0, 0), siphash13(range(1, 4), 0, 1));
  EXPECT_EQ(keyed_block_hash(range(1, 4)), keyed_block_hash(range(1, 4)));
}

// The cache's events name each page by the chain, however the tree was cut when they were stored.
TEST(KvEvents, HashesAreTheChainsOfSha256) {
  const nlohmann::json file = golden();
  for (const auto& row : file.at("chains")) {
    const auto page = row.at("page").get<int32_t>();
    const auto tokens = row.at("tokens").get<Tokens>();
    const auto hashes = row.at("hashes").get<std::vector<int64_t>>();
    const CacheNamespace space{row.at("extra_key").get<std::string>(), 7};
    Fixture f(page, 64, 0, kEvents);
    f.insert(Tokens(tokens.begin(), tokens.begin() + page), space);
    f.insert(tokens, space);
    const KvEvents taken = f.cache.take_events();
    ASSERT_EQ(taken.events.size(), hashes.size()) << row;
    for (std::size_t i = 0; i < hashes.size(); ++i) {
      const KvEvent& event = taken.events[i];
      EXPECT_EQ(event.kind, KvEventKind::kStored);
      EXPECT_EQ(event.medium, KvMedium::kPool);
      EXPECT_EQ(event.hashes, std::vector{hashes[i]}) << row;
      EXPECT_EQ(event.parent, i == 0 ? std::nullopt : std::optional(hashes[i - 1]));
      const auto first = tokens.begin() + static_cast<std::ptrdiff_t>(i) * page;
      EXPECT_EQ(event.tokens, Tokens(first, first + page));
      EXPECT_EQ(event.block_size, page);
      EXPECT_EQ(event.extra_key, space.extra_key);
      EXPECT_EQ(event.weight_version, 7u);
    }
  }
}

TEST(KvEvents, OffMeansNone) {
  Fixture f(4, 16, 0, {});
  f.insert(range(1, 8));
  f.cache.evict(2);
  EXPECT_TRUE(f.cache.take_events().events.empty());
}

// One kRemoved with both hashes in order; the same page twice in a text has two hashes; a split keeps them.
TEST(KvEvents, EvictionNamesWhatWasStored) {
  Fixture f(4, 16, 0, kEvents);
  f.insert({1, 2, 3, 4, 1, 2, 3, 4});
  const KvEvents stored = f.cache.take_events();
  ASSERT_EQ(stored.events.size(), 2u);
  const int64_t first = stored.events[0].hashes[0];
  const int64_t second = stored.events[1].hashes[0];
  EXPECT_NE(first, second);
  f.cache.evict(2);
  KvEvents removed = f.cache.take_events();
  ASSERT_EQ(removed.events.size(), 1u);
  EXPECT_EQ(removed.events[0].kind, KvEventKind::kRemoved);
  EXPECT_EQ(removed.events[0].hashes, (std::vector{first, second}));

  f.insert({1, 2, 3, 4, 1, 2, 3, 4});
  f.match({1, 2, 3, 4});  // splits
  f.cache.take_events();
  f.cache.evict(2);
  removed = f.cache.take_events();
  ASSERT_EQ(removed.events.size(), 2u);
  EXPECT_EQ(removed.events[0].hashes, std::vector{second});
  EXPECT_EQ(removed.events[1].hashes, std::vector{first});
}

// A reader that applies the events in order knows what each tier holds.
TEST(KvEvents, ReportWhatIsInBothTiers) {
  Fixture f(1, 6, 8, kEvents);
  const auto text = [](const KvEvents& events) {
    std::string line;
    for (const KvEvent& event : events.events) {
      line += event.kind == KvEventKind::kStored ? "+" : event.kind == KvEventKind::kRemoved ? "-" : "0";
      line += kv_medium_name(event.medium)[0] + std::to_string(event.hashes.size());
    }
    return line;
  };
  f.insert({1, 2});
  EXPECT_EQ(text(f.cache.take_events()), "+p1+p1+h1+h1");
  f.cache.evict(1);
  EXPECT_EQ(text(f.cache.take_events()), "-p1");
  const MatchResult match = f.cache.match_prefix({}, Tokens{1, 2, 3});
  f.cache.lock(match.host_node);
  std::vector<PageId> pages;
  ASSERT_TRUE(f.pool.allocate(1, pages));
  f.cache.load(match.host_node, pages);
  EXPECT_EQ(text(f.cache.take_events()), "+p1");
  f.cache.drop_unlocked(5);  // locked: nothing goes
  EXPECT_EQ(text(f.cache.take_events()), "");
  f.cache.unlock(match.host_node);
  f.cache.drop_unlocked(5);
  EXPECT_EQ(text(f.cache.take_events()), "-h1-p1-h1-p1");
  f.insert({1, 2});
  f.cache.take_events();
  f.cache.drop_unlocked();
  EXPECT_EQ(text(f.cache.take_events()), "0p0");
}

// The key of the hash under the tree is random, and nothing that can be seen depends on it: neither which pages go and
// come, nor the order of the events.
TEST(KvEvents, DoNotDependOnTheHashUnderTheTree) {
  const RadixCache::BlockHash hashes[] = {keyed_block_hash,
                                          [](std::span<const int32_t> block) { return siphash13(block, 1, 2); },
                                          [](std::span<const int32_t> block) { return siphash13(block, 3, 4); }};
  std::vector<std::string> stories;
  for (const RadixCache::BlockHash hash : hashes) {
    PagePool pool(64);
    RadixCache cache(pool, 1, kEvents, nullptr, hash);
    std::string story;
    for (int32_t i = 0; i < 40; ++i) {
      std::vector<PageId> pages;
      ASSERT_TRUE(pool.allocate(3, pages));
      for (PageId page : cache.insert({}, Tokens{i % 2, i * 7 % 11, i}, pages).duplicates) {
        ASSERT_TRUE(pool.release(page, PageState::kHeld).ok());
      }
      if (pool.free_count() < 8) cache.evict(5);
      if (i == 30) cache.drop_unlocked(7);
      for (PageId page : pages) story += std::to_string(page.value) + " ";
    }
    for (const KvEvent& event : cache.take_events().events) {
      for (int64_t each : event.hashes) story += std::to_string(each) + " ";
    }
    stories.push_back(story);
  }
  EXPECT_EQ(stories[0], stories[1]);
  EXPECT_EQ(stories[1], stories[2]);
}

TEST(KvEvents, AreBoundedAndTheLossIsCounted) {
  constexpr auto kPages = static_cast<int32_t>(kMaxKvEvents) + 100;
  Fixture f(1, kPages, 0, kEvents);
  std::vector<PageId> pages;
  ASSERT_TRUE(f.pool.allocate(kPages, pages));
  f.cache.insert({}, range(1, kPages), pages);
  KvEvents taken = f.cache.take_events();
  EXPECT_EQ(taken.events.size(), kMaxKvEvents);
  EXPECT_EQ(taken.dropped, 100u);
  f.cache.evict(1);
  taken = f.cache.take_events();
  EXPECT_EQ(taken.events.size(), 1u);
  EXPECT_EQ(taken.dropped, 0u);
}

}  // namespace
}  // namespace millrace
