// A pool, perhaps a host tier, a cache, and the caller's part of the contract: allocate, insert, free what was a
// duplicate. For tests only.
#pragma once

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "kv/radix_cache.h"

namespace millrace::testing {

using Tokens = std::vector<int32_t>;

inline Tokens range(int32_t first, int32_t last) {
  Tokens tokens(static_cast<std::size_t>(last - first + 1));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

class CacheFixture {
 public:
  explicit CacheFixture(int32_t page_size, int32_t pages = 256, RadixCache::BlockHash hash = keyed_block_hash)
      : pool(pages), host(1), cache(pool, page_size, {}, nullptr, hash) {}
  CacheFixture(int32_t page_size, int32_t pages, int32_t host_pages, CacheOptions options)
      : pool(pages), host(std::max(1, host_pages)), cache(pool, page_size, options, host_pages > 0 ? &host : nullptr) {}

  InsertResult insert(const Tokens& tokens, const CacheNamespace& space = {}, int32_t priority = 0) {
    std::vector<PageId> pages;
    const auto count = static_cast<int32_t>(tokens.size()) / cache.page_size();
    if (count > pool.free_count()) cache.evict(count - pool.free_count());
    EXPECT_TRUE(pool.allocate(count, pages));
    const std::size_t aligned = static_cast<std::size_t>(count * cache.page_size());
    InsertResult result = cache.insert(space, std::span(tokens).first(aligned), pages, {.priority = priority});
    for (PageId page : result.duplicates) EXPECT_TRUE(pool.release(page, PageState::kHeld).ok());
    EXPECT_TRUE(cache.verify().ok()) << cache.verify().to_string();
    EXPECT_EQ(pool.books().held(), 0);
    return result;
  }

  // Tokens matched in the pool, when one more token follows, so that all of `tokens` may match.
  int32_t match(Tokens tokens, const CacheNamespace& space = {}) {
    tokens.push_back(-7);
    const MatchResult result = cache.match_prefix(space, tokens);
    EXPECT_TRUE(cache.verify().ok()) << cache.verify().to_string();
    return static_cast<int32_t>(result.pages.size()) * cache.page_size();
  }

  // The same in both tiers, and nothing touched: "pool+host".
  std::string peek(Tokens tokens, const CacheNamespace& space = {}) const {
    tokens.push_back(-7);
    const PeekResult result = cache.peek(space, tokens);
    return std::to_string(result.pages) + "+" + std::to_string(result.host_pages);
  }

  PagePool pool;
  PagePool host;
  RadixCache cache;
};

}  // namespace millrace::testing
