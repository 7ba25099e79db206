// RadixCache: which KV pages hold which token sequences, so that requests with a common prefix compute it once.
//
// A radix tree for each namespace (extra key, weight version). An edge is a run of whole pages: page_size tokens each.
// Children are found by a hash of their first page and then compared token by token: two prompts share a page only if
// their tokens are equal, whatever the hash says.
//
// Invariants (verify() checks them; the property test checks them against a plain map):
//   - a node other than a root has at least one page, and page_size tokens for each of its pages
//   - no two children of a node begin with the same page of tokens
//   - a node's lock count is at least the sum of its children's; so whatever is unlocked can be evicted, leaves first
//   - a node was last used no earlier than each of its children
//   - pages in the tree = pages of the pool in state kCached
//   - the eviction order holds exactly the unlocked leaves
//
// The result of a match or insert stays good only while its node is locked: lock it before the next call that changes
// the tree. Cost: match and insert O(tokens), lock and unlock O(nodes of the path), evict O(log leaves) a node; never a
// walk over all leaves.
//
// Owner: one scheduler, beside its PagePool. Thread safety: none.
#pragma once

#include <compare>
#include <cstdint>
#include <list>
#include <map>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "kv/page_pool.h"

namespace millrace {

// Pages are shared inside a namespace only.
struct CacheNamespace {
  std::string extra_key;  // kv/extra_key.h composes it
  uint64_t weight_version = 0;
  friend auto operator<=>(const CacheNamespace&, const CacheNamespace&) = default;
};

struct RadixNode {
  using Children = std::unordered_multimap<uint64_t, RadixNode*>;  // by the hash of the child's first page

  std::vector<int32_t> tokens;  // pages.size() * page_size
  std::vector<PageId> pages;
  RadixNode* parent = nullptr;
  Children children;
  int32_t locks = 0;
  uint64_t last_access = 0;
  uint64_t serial = 0;                    // order of creation
  const CacheNamespace* space = nullptr;  // roots only: their key
  std::list<RadixNode>::iterator self;
};

struct MatchResult {
  std::vector<PageId> pages;  // the longest cached prefix; pages.size() * page_size tokens
  RadixNode* node = nullptr;  // its last node; nullptr when nothing matched
};

struct InsertResult {
  std::vector<PageId> pages;  // the cache's page for each page of the input
  std::vector<PageId>
      duplicates;             // the caller's pages that were cached already under another number: still the caller's
  RadixNode* node = nullptr;  // the last node; nullptr when there was nothing to insert
};

class RadixCache {
 public:
  using BlockHash = uint64_t (*)(std::span<const int32_t> block);
  static uint64_t default_hash(std::span<const int32_t> block);

  // `pool` outlives the cache. `hash` is replaced in tests that force collisions.
  RadixCache(PagePool& pool, int32_t page_size, BlockHash hash = default_hash);

  // The longest cached prefix of `tokens`, in whole pages, and at most tokens.size() - 1 tokens, so that one token is
  // left to compute and give logits. Splits a node that matches in part. Marks the path as just used.
  MatchResult match_prefix(const CacheNamespace& space, std::span<const int32_t> tokens);

  // How many tokens match_prefix would find now: nothing is touched, split or locked.
  int32_t peek(const CacheNamespace& space, std::span<const int32_t> tokens) const;

  // Makes the cache know `tokens`; tokens.size() == pages.size() * page_size. A page that the caller holds becomes the
  // cache's (kHeld -> kCached) where its tokens are new; where they are cached, the cache's own page stands.
  InsertResult insert(const CacheNamespace& space, std::span<const int32_t> tokens, std::span<const PageId> pages);

  // A locked node and its path to the root are not evicted. Locks count. nullptr is allowed and does nothing.
  void lock(RadixNode* node);
  void unlock(RadixNode* node);

  // Frees `count` pages, the least recently used first and each path from its end, or as many as are unlocked. Returns
  // how many.
  int32_t evict(int32_t count);

  int32_t page_size() const { return page_size_; }
  int32_t cached_pages() const { return cached_pages_; }
  int32_t locked_pages() const { return locked_pages_; }
  int32_t evictable_pages() const { return cached_pages_ - locked_pages_; }
  int32_t node_count() const { return static_cast<int32_t>(nodes_.size() - roots_.size()); }

  Status verify() const;  // the invariants above; O(tokens)

  // For tests and debugging: the roots by namespace.
  const std::map<CacheNamespace, RadixNode*>& roots() const { return roots_; }

 private:
  struct EvictFirst {
    bool operator()(const RadixNode* a, const RadixNode* b) const {
      return a->last_access != b->last_access ? a->last_access < b->last_access : a->serial < b->serial;
    }
  };

  RadixNode* walk(RadixNode* root, std::span<const int32_t> tokens, std::vector<PageId>& pages);
  RadixNode* find_child(const RadixNode& node, std::span<const int32_t> tokens) const;
  int32_t common_pages(const RadixNode& node, std::span<const int32_t> tokens) const;
  RadixNode* new_node(RadixNode* parent, std::span<const int32_t> tokens, std::span<const PageId> pages);
  RadixNode* split(RadixNode* node, int32_t pages);
  void remove_leaf(RadixNode* leaf);
  RadixNode::Children::iterator find_entry(const RadixNode& node) const;
  void touch(RadixNode* node);
  void update_evictable(RadixNode* node);
  std::span<const int32_t> first_block(const RadixNode& node) const;
  Status verify_edge(const RadixNode& node) const;

  PagePool& pool_;
  int32_t page_size_;
  BlockHash hash_;
  std::list<RadixNode> nodes_;  // owns every node, roots included: tearing down needs no recursion
  std::map<CacheNamespace, RadixNode*> roots_;
  std::set<RadixNode*, EvictFirst> evictable_;
  int32_t cached_pages_ = 0;
  int32_t locked_pages_ = 0;
  uint64_t tick_ = 0;
  uint64_t next_serial_ = 0;
};

}  // namespace millrace
