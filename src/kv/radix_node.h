// RadixNode: one edge of the radix tree, a run of whole pages. A plain record. RadixTree changes its tokens
// and links, CacheTier its pages, RadixCache its locks and uses.
//
// A node's pages may lie in two tiers, the pool and the host. Each tier has a run from the node's beginning, and the
// longer of the two runs is the node: max(pages.size(), host_pages.size()) * page_size == tokens.size().
//
// Owner: its RadixTree. Thread safety: none; the thread of that tree.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <list>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "kv/block_hash.h"
#include "kv/child_map.h"
#include "kv/kv_event.h"

namespace millrace {

// Pages are shared inside a namespace only.
struct CacheNamespace {
  std::string extra_key;  // kv/extra_key.h composes it
  uint64_t weight_version = 0;
  friend auto operator<=>(const CacheNamespace&, const CacheNamespace&) = default;
};

struct RadixNode {
  std::vector<int32_t> tokens;
  std::vector<PageId> pages;         // in the pool
  std::vector<PageId> host_pages;    // in the host tier
  std::vector<BlockDigest> digests;  // one for each page of tokens, where events are noted; a root: of its extra key

  RadixNode* parent = nullptr;
  ChildMap children;
  uint64_t block_hash = 0;    // of the first page
  int32_t pool_children = 0;  // children with pages in the pool
  int32_t host_children = 0;  // children with pages in the host tier

  int32_t locks = 0;
  int32_t hits = 0;  // requests that computed or used it
  int32_t priority = 0;
  uint64_t last_access = 0;
  uint64_t created = 0;
  uint64_t serial = 0;                    // different for each node
  const CacheNamespace* space = nullptr;  // roots only: their key

  int32_t pool_heap_index = -1;  // in the eviction order of the pool
  int32_t host_heap_index = -1;  // in that of the host tier
  std::list<RadixNode>::iterator self;

  bool is_root() const { return parent == nullptr; }
  std::vector<PageId>& pages_in(KvMedium medium) { return medium == KvMedium::kPool ? pages : host_pages; }
  const std::vector<PageId>& pages_in(KvMedium medium) const { return medium == KvMedium::kPool ? pages : host_pages; }
  int32_t& children_in(KvMedium medium) { return medium == KvMedium::kPool ? pool_children : host_children; }
  bool in_pool() const { return !pages.empty(); }
  bool in_host() const { return !host_pages.empty(); }
};

// The tokens of one page of a node.
inline std::span<const int32_t> page_tokens(const RadixNode& node, int32_t page, int32_t page_size) {
  const auto size = static_cast<std::size_t>(page_size);
  return std::span(node.tokens).subspan(static_cast<std::size_t>(page) * size, size);
}

}  // namespace millrace
