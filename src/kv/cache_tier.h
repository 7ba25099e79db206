// CacheTier: the cached pages of one tier, the pool or the host: which node holds which of them, and which are evicted
// first. The pages of a node in a tier are a run from the node's beginning.
//
// Invariants: page_count() = pages of the nodes in this tier = pages of its pool in state kCached; a node's number of
// children in the tier counts those with pages in it.
//
// Owner: one RadixCache, which updates the eviction queues. Thread safety: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "kv/cache_options.h"
#include "kv/eviction_queue.h"
#include "kv/kv_event.h"
#include "kv/page_pool.h"
#include "kv/radix_node.h"

namespace millrace {

// Frees the last `count` of `pages`.
void free_last_pages(PagePool& pool, std::vector<PageId>& pages, std::size_t count);

template <KvMedium medium>
class CacheTier {
 public:
  // `pool` outlives the tier; nullptr where there is no such tier, and then no page is ever added.
  CacheTier(PagePool* pool, EvictionStrategy strategy) : pool_(pool), queue_(strategy) {}

  bool exists() const { return pool_ != nullptr; }

  // `pages`, held by the caller, continue the node's run.
  void append(RadixNode* node, std::span<const PageId> pages) {
    std::vector<PageId>& run = node->pages_in(medium);
    const std::size_t first = run.size();
    run.insert(run.end(), pages.begin(), pages.end());
    adopt(node, first);
  }

  // `count` free pages of the pool, which has as many, continue the node's run.
  void allocate(RadixNode* node, int32_t count) {
    std::vector<PageId>& run = node->pages_in(medium);
    const std::size_t first = run.size();
    CHECK(pool_->allocate(count, run));
    adopt(node, first);
  }

  // Frees the last `count` pages of an unlocked node that no child in this tier continues.
  void drop_last(RadixNode* node, int32_t count) {
    CHECK(node->locks == 0 && node->children_in(medium) == 0);
    std::vector<PageId>& run = node->pages_in(medium);
    free_last_pages(*pool_, run, static_cast<std::size_t>(count));
    page_count_ -= count;
    if (!run.empty()) return;
    CHECK(node->parent->children_in(medium) > 0);
    --node->parent->children_in(medium);
  }

  int32_t page_count() const { return page_count_; }
  const PagePool& pool() const {
    CHECK(exists());
    return *pool_;
  }
  EvictionQueue<medium>& queue() { return queue_; }
  const EvictionQueue<medium>& queue() const { return queue_; }

 private:
  // The node's pages from `first` on are the cache's from now on.
  void adopt(RadixNode* node, std::size_t first) {
    const std::vector<PageId>& run = node->pages_in(medium);
    for (std::size_t i = first; i < run.size(); ++i) {
      // Fails where a caller inserted a page that it does not hold.
      CHECK(pool_->move(run[i], PageState::kHeld, PageState::kCached).ok());
    }
    page_count_ += static_cast<int32_t>(run.size() - first);
    if (first == 0) ++node->parent->children_in(medium);
  }

  PagePool* pool_;
  EvictionQueue<medium> queue_;
  int32_t page_count_ = 0;
};

using PoolTier = CacheTier<KvMedium::kPool>;
using HostTier = CacheTier<KvMedium::kHost>;

}  // namespace millrace
