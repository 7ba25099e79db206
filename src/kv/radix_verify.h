// verify_radix_cache: every invariant of the radix cache and its objects, recounted from the nodes.
//
// Thread safety: a free function; the thread that the cache belongs to. O(tokens).
#pragma once

#include <cstdint>

#include "base/status.h"
#include "kv/cache_tier.h"
#include "kv/radix_tree.h"

namespace millrace {

struct RadixCacheParts {
  const RadixTree& tree;
  const PoolTier& pool;
  const HostTier& host;
  int32_t locked_pages;
  bool with_digests;  // whether each page of a node has a digest
};

// kInternal names the node or the page, what it is and what it should be.
Status verify_radix_cache(const RadixCacheParts& parts);

}  // namespace millrace
