// RadixCache: which KV pages hold which token sequences, so that requests with a common prefix compute it once.
//
// It joins four objects and keeps them consistent: the nodes by tokens (kv/radix_tree.h), the pages of each of the two
// tiers with their eviction queue (kv/cache_tier.h), and the events for routers (kv/kv_event_log.h). Locks, uses and
// copies between the tiers are its concern.
//
// With a host tier, a page may lie in the pool, in the host tier, or in both. A match goes through the pool first and
// then into what lies in the host tier alone; load() brings that back. Both ways the cache only decides: the copies are
// noted (take_copies), and the runner carries them out in this order, before the rows of the batch that they go with
// and after everything that was submitted before. That is why a page of either tier may be reused as soon as the copy
// that reads it is noted: whatever writes it anew, a later copy or a row, is carried out later.
//
// Invariants, beside those of its objects (verify() checks them; the property test checks them against a plain map):
//   - a node other than a root has at least one page; its pages are as in kv/radix_node.h
//   - pool: a node with pages in the pool has a parent that is wholly in the pool, or a root
//   - host: a node with pages in the host tier has a parent that is wholly in the host tier, or a root
//   - a node's lock count is at least the sum of its children's; so whatever is unlocked can be evicted, leaves first
//   - a node was last used no earlier, by no fewer requests and at no lower priority than each of its children
//
// The result of a match or insert stays good only while its node is locked: lock it before the next call that changes
// the tree. Cost: match and insert O(tokens), lock and unlock O(nodes of the path), evict O(log leaves) a node; never a
// walk over all leaves.
//
// Owner: one scheduler, beside its PagePool. Thread safety: none.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "base/function_ref.h"
#include "base/ids.h"
#include "base/status.h"
#include "kv/cache_options.h"
#include "kv/cache_tier.h"
#include "kv/kv_event.h"
#include "kv/kv_event_log.h"
#include "kv/page_copy.h"
#include "kv/page_pool.h"
#include "kv/radix_node.h"
#include "kv/radix_tree.h"

namespace millrace {

struct MatchResult {
  std::vector<PageId> pages;       // the longest prefix in the pool; pages.size() * page_size tokens
  RadixNode* node = nullptr;       // its last node, which ends where `pages` ends; nullptr when nothing matched
  int32_t host_pages = 0;          // pages that follow those and lie in the host tier alone
  RadixNode* host_node = nullptr;  // the last node of these; nullptr when there are none
};

// How much match_prefix would find.
struct PeekResult {
  int32_t pages = 0;
  int32_t host_pages = 0;
};

// Pages since the beginning; counters only ever grow.
struct CacheCounters {
  uint64_t evicted = 0;       // from the pool, to free pages
  uint64_t host_evicted = 0;  // from the host tier, to free pages
  uint64_t backed_up = 0;     // copied to the host tier
  uint64_t loaded = 0;        // copied back

  CacheCounters& operator+=(const CacheCounters& other) {
    evicted += other.evicted;
    host_evicted += other.host_evicted;
    backed_up += other.backed_up;
    loaded += other.loaded;
    return *this;
  }
  friend bool operator==(const CacheCounters&, const CacheCounters&) = default;
};

struct InsertOptions {
  int32_t priority = 0;
  // Where the input goes on: a locked node, wholly in the pool, whose path is left out of `tokens` and `pages`.
  // nullptr: the input begins at the beginning.
  RadixNode* below = nullptr;
};

struct InsertResult {
  std::vector<PageId> pages;  // the cache's page for each page of the input
  std::vector<PageId>
      duplicates;             // the caller's pages that were cached already under another number: still the caller's
  RadixNode* node = nullptr;  // the last node; `below` when there was nothing to insert
};

class RadixCache {
 public:
  using BlockHash = RadixTree::BlockHash;

  // The pools outlive the cache; `host` is nullptr where there is no host tier. `hash` is replaced in tests that force
  // collisions.
  RadixCache(PagePool& pool, int32_t page_size, CacheOptions options = {}, PagePool* host = nullptr,
             BlockHash hash = keyed_block_hash);

  // The longest cached prefix of `tokens`, in whole pages, and at most tokens.size() - 1 tokens, so that one token is
  // left to compute and give logits. Splits a node that matches in part. Marks the path as just used.
  MatchResult match_prefix(const CacheNamespace& space, std::span<const int32_t> tokens);

  // How much match_prefix would find now: nothing is touched, split or locked.
  PeekResult peek(const CacheNamespace& space, std::span<const int32_t> tokens) const;

  // Makes the cache know `tokens`; tokens.size() == pages.size() * page_size. A page that the caller holds becomes the
  // cache's (kHeld -> kCached) where its tokens are new to the pool; where they are there, the cache's own page stands.
  // Counts as one use of each node that the input ends or passes through.
  InsertResult insert(const CacheNamespace& space, std::span<const int32_t> tokens, std::span<const PageId> pages,
                      InsertOptions options = {});

  // One more request uses the path of `node`, which is locked: for LFU, SLRU, priority and write_through_selective.
  void count_use(RadixNode* node, int32_t priority);

  // Brings what of the path of `node` lies in the host tier alone into the pool: `pages`, held by the caller, one for
  // each such page. They become the cache's, and copies are noted. `node` is locked.
  void load(RadixNode* node, std::span<const PageId> pages);

  // A locked node and its path to the root are evicted from neither tier. Locks count. nullptr is allowed and does
  // nothing.
  void lock(RadixNode* node);
  void unlock(RadixNode* node);

  // Frees `count` pages of the pool, in the strategy's order and each path from its end, or as many as are unlocked.
  // Returns how many.
  int32_t evict(int32_t count);

  // Drops from both tiers what is not locked: all, or only namespaces of other weight versions than `keep`. Returns how
  // many pages of the pool became free. O(nodes).
  int32_t drop_unlocked(std::optional<uint64_t> keep = std::nullopt);
  // The same of the namespaces of this weight version alone: other weights are about to have its number.
  int32_t drop_version(uint64_t version);
  bool locks_version(uint64_t version) const;  // something of it is locked

  // What was noted since the last call, in order.
  std::vector<PageCopy> take_copies();
  // Some of them are from the host tier: of pages that are cached, and have not got their bytes.
  bool loads_due() const {
    return std::ranges::any_of(copies_,
                               [](const PageCopy& copy) { return copy.direction == CopyDirection::kFromHost; });
  }
  // Puts copies that were taken and not carried out in front of those noted since.
  void return_copies(std::vector<PageCopy> copies);
  KvEvents take_events() { return events_.take(); }
  // For a cache that replaces another: the events that no reader took from the old one, then kCleared.
  void continue_events(KvEvents before);

  const CacheOptions& options() const { return options_; }
  int32_t page_size() const { return tree_.page_size(); }
  int32_t cached_pages() const { return pool_.page_count(); }
  int32_t locked_pages() const { return locked_pages_; }
  int32_t evictable_pages() const { return pool_.page_count() - locked_pages_; }
  int32_t host_pages() const { return host_.page_count(); }
  const CacheCounters& counters() const { return counters_; }
  int32_t node_count() const { return static_cast<int32_t>(tree_.nodes().size() - tree_.roots().size()); }
  // How often the eviction queues compared two nodes: what eviction costs, for the tests.
  uint64_t eviction_comparisons() const { return pool_.queue().comparisons() + host_.queue().comparisons(); }

  Status verify() const;  // the invariants above; O(tokens)

  // For tests and debugging: the roots by namespace.
  const std::map<CacheNamespace, RadixNode*>& roots() const { return tree_.roots(); }

 private:
  // ---- radix_cache.cc: what a request asks for ----
  std::span<const int32_t> matchable(std::span<const int32_t> tokens) const;
  RadixNode* root_of(const CacheNamespace& space);
  RadixNode* new_child(RadixNode* parent, std::span<const int32_t> tokens);
  RadixNode* split(RadixNode* node, int32_t pages);
  void adopt_known(RadixNode& child, std::span<const PageId> pages, InsertResult& result);
  void use(RadixNode* node, int32_t priority, int32_t uses);
  void mark_used(RadixNode* node);
  void update_queues(RadixNode* node);

  // ---- radix_tiers.cc: pages come and go ----
  int32_t drop_unlocked_of(FunctionRef<bool(const CacheNamespace&)> dropped, bool everything);
  void add_pool_pages(RadixNode* node, std::span<const PageId> pages);
  template <KvMedium medium>
  void drop_pages(CacheTier<medium>& tier, RadixNode* node, int32_t count);
  int32_t evict_host(int32_t count);
  bool wants_backup(const RadixNode& node) const;
  void back_up_path(RadixNode* node);
  bool back_up(RadixNode* node);
  bool back_up_node(RadixNode* node);

  const CacheOptions options_;
  RadixTree tree_;
  PoolTier pool_;
  HostTier host_;
  KvEventLog events_;
  std::vector<PageCopy> copies_;
  CacheCounters counters_;
  int32_t locked_pages_ = 0;  // of the pool
  uint64_t tick_ = 0;         // grows with each use of the cache
};

}  // namespace millrace
