// SequenceMemory: gives KV pages to sequences and takes them back. It joins the page pool and the radix cache, so that
// the scheduler speaks of sequences only. The bytes behind the pages are the runner's.
//
// Invariants (docs/scheduler.md):
//   books: free + cached + held = all, after every call
//   a sequence's page table is [shared: the tree's, locked] [own: held by it alone]; rows are only ever written to own
//   pages, because shared pages lie below `computed`
//
// Owner: the scheduler. Thread safety: none.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "kv/page_pool.h"
#include "kv/radix_cache.h"
#include "scheduler/sequence.h"

namespace millrace {

// Whether the KV that a sequence computed may be found by others. kNo when the step that computed it failed.
enum class Publish : bool { kNo = false, kYes = true };

class SequenceMemory {
 public:
  SequenceMemory(int32_t page_count, int32_t page_size, bool prefix_cache);

  int32_t page_size() const { return page_size_; }
  int32_t pages_for(int64_t tokens) const { return static_cast<int32_t>((tokens + page_size_ - 1) / page_size_); }
  int32_t available() const { return pool_->free_count() + cache_->evictable_pages(); }

  // Finds the longest cached prefix of the sequence's tokens, locks it, and allocates pages for all the other tokens;
  // sets computed, pages, shared_pages, lock, weight_version. False, and nothing has changed, when fewer than `reserve`
  // pages would stay available.
  bool attach(Sequence& sequence, uint64_t weight_version, int64_t reserve);

  // Pages that the sequence lacks to compute all its tokens: 0 or 1 for one that decodes.
  int32_t pages_lacking(const Sequence& sequence) const {
    return std::max(0, pages_for(sequence.length()) - static_cast<int32_t>(sequence.pages.size()));
  }
  // Allocates those pages, evicting cached ones where none is free. False: not enough, nothing has changed.
  bool grow(Sequence& sequence);

  // Puts the whole pages that are computed into the cache, and goes on with the cache's pages where they were cached
  // already. Only while no batch that names the sequence is in flight.
  void publish(Sequence& sequence);

  // Gives everything back: computed whole pages to the cache (kYes), the others to the pool. The sequence then holds
  // nothing and nothing of it is computed.
  void release(Sequence& sequence, Publish publish_first);

  PageBooks books() const { return pool_->books(); }
  const RadixCache& cache() const { return *cache_; }
  PagePool& pool() { return *pool_; }

  // Recounts everything; O(pages). `idle`: no sequence holds anything, so held must be 0 and nothing locked.
  Status verify(bool idle) const;
  // Forgets everything: all pages free, the cache empty. Only when no sequence holds anything.
  void rebuild();

 private:
  bool allocate(int32_t count, std::vector<PageId>& out);
  void give_back(PageId page);

  int32_t page_count_;
  int32_t page_size_;
  bool prefix_cache_;
  std::unique_ptr<PagePool> pool_;
  std::unique_ptr<RadixCache> cache_;
};

}  // namespace millrace
