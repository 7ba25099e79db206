// What a radix cache holds, for people who look at it: the nodes used last, and the pages that running requests use.
// Numbers alone: no token, no text, and of an extra key only whether there is one.
//
// Thread safety: free functions; the thread that the cache belongs to.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kv/radix_cache.h"

namespace millrace {

inline constexpr std::size_t kMaxSummaryNodes = 256;
inline constexpr int32_t kMaxSummaryDepth = 32;             // nodes from the root
inline constexpr std::size_t kMaxSummaryVisits = 16 << 10;  // nodes looked at in one summary: bounds its cost

struct SummaryNode {
  uint64_t serial = 0;   // stays the same for the node's life
  int32_t parent = -1;   // its number in the summary, which is smaller; -1: a root
  int32_t begin = 0;     // tokens before it
  int32_t tokens = 0;    // of the node itself; a root: 0
  int32_t hits = 0;      // requests that computed or used it
  bool locked = false;   // running requests use it
  bool on_host = false;  // no page of it lies in the pool
  // Of a root: its namespace.
  uint64_t weight_version = 0;
  bool has_extra_key = false;
};

struct CacheSummary {
  std::vector<SummaryNode> nodes;  // a parent before its children
  int32_t nodes_total = 0;         // of the tree, roots not counted
};

// The nodes used last, and with each of them its path from the root. O(kMaxSummaryVisits log kMaxSummaryVisits).
CacheSummary summarize(const RadixCache& cache);

// Puts `mark` at each page of the pool that a locked node has. O(locked pages).
void mark_locked_pages(const RadixCache& cache, char mark, std::string& map);

}  // namespace millrace
