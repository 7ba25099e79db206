// EvictionQueue: the nodes of one tier that can be evicted, the first one on top.
//
// Invariant: it holds exactly the unlocked nodes with pages in the tier that have no child with pages in it, so that a
// path is evicted from its end. RadixCache reports every change: update() after one of locks, pages or children,
// requeue() after one of use.
//
// Owner: a CacheTier. Thread safety: none. Cost: O(log nodes in it) for each change.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "kv/cache_options.h"
#include "kv/indexed_heap.h"
#include "kv/kv_event.h"
#include "kv/radix_node.h"

namespace millrace {

struct EvictionKey {
  uint64_t major = 0;
  uint64_t minor = 0;
  uint64_t serial = 0;
  friend auto operator<=>(const EvictionKey&, const EvictionKey&) = default;
};

// The tuples of EvictionStrategy as unsigned numbers, the smallest first.
EvictionKey eviction_key(EvictionStrategy strategy, const RadixNode& node);

template <KvMedium medium>
class EvictionQueue {
 public:
  explicit EvictionQueue(EvictionStrategy strategy) : strategy_(strategy) {}

  // The node to evict from; nullptr: none can be.
  RadixNode* first() const { return heap_.empty() ? nullptr : heap_.top(); }

  static bool is_evictable(const RadixNode& node) {
    const int32_t children = medium == KvMedium::kPool ? node.pool_children : node.host_children;
    return !node.is_root() && node.locks == 0 && !node.pages_in(medium).empty() && children == 0;
  }

  void update(RadixNode* node) {
    const bool wanted = is_evictable(*node);
    if (wanted == heap_.contains(node)) return;
    if (wanted) {
      heap_.push(node, eviction_key(strategy_, *node));
    } else {
      heap_.erase(node);
    }
  }

  void requeue(RadixNode* node) {
    if (heap_.contains(node)) heap_.update(node, eviction_key(strategy_, *node));
  }

  bool contains(const RadixNode& node) const { return index_of(node) != kNotInHeap; }
  std::size_t size() const { return heap_.size(); }
  uint64_t comparisons() const { return heap_.comparisons(); }  // of two nodes: what the tests count instead of time
  // Keys and indices are right.
  Status verify() const {
    return heap_.verify([this](const RadixNode* node) { return eviction_key(strategy_, *node); });
  }

 private:
  static int32_t index_of(const RadixNode& node) {
    return medium == KvMedium::kPool ? node.pool_heap_index : node.host_heap_index;
  }
  struct IndexOf {
    int32_t& operator()(RadixNode* node) const {
      return medium == KvMedium::kPool ? node->pool_heap_index : node->host_heap_index;
    }
  };

  const EvictionStrategy strategy_;
  IndexedHeap<EvictionKey, RadixNode*, IndexOf> heap_;
};

}  // namespace millrace
