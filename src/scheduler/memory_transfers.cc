// SequenceMemory: prefixes that transfers read, pages that they write, and leases.
#include <algorithm>
#include <utility>

#include "base/log.h"
#include "scheduler/memory.h"

namespace millrace {
namespace {

// The cache always leaves one token to compute: one that is never looked at stands for it.
std::vector<int32_t> with_one_more(std::span<const int32_t> tokens) {
  std::vector<int32_t> more(tokens.begin(), tokens.end());
  more.push_back(0);
  return more;
}

}  // namespace

SequenceMemory::LockedPrefix SequenceMemory::lock_prefix(const CacheNamespace& space, std::span<const int32_t> tokens) {
  LockedPrefix prefix;
  if (!options_.prefix_cache) return prefix;
  MatchResult match = cache_->match_prefix(space, with_one_more(tokens));
  if (match.node == nullptr) return prefix;
  cache_->lock(match.node);
  ++prefix_locks_;
  return {std::move(match.pages), match.node};
}

void SequenceMemory::unlock_prefix(RadixNode* node) {
  if (node == nullptr) return;
  CHECK(prefix_locks_ > 0);
  --prefix_locks_;
  cache_->unlock(node);
}

int32_t SequenceMemory::cached_pages(const CacheNamespace& space, std::span<const int32_t> tokens) const {
  return options_.prefix_cache ? cache_->peek(space, with_one_more(tokens)).pages : 0;
}

bool SequenceMemory::begin_import(int32_t count, std::vector<PageId>& out) {
  std::vector<PageId> fresh;
  const TreeMark before = mark_tree();
  const bool enough = allocate(count, fresh);
  note_tree(before);
  if (!enough) return false;
  for (const PageId page : fresh) CHECK(pool_->move(page, PageState::kHeld, PageState::kImporting).ok());
  out.insert(out.end(), fresh.begin(), fresh.end());
  return true;
}

// Where the same tokens were computed here meanwhile, the cache's own pages stay.
void SequenceMemory::publish_import(const CacheNamespace& space, std::span<const int32_t> tokens,
                                    std::span<const PageId> pages, RadixNode* below) {
  for (const PageId page : pages) CHECK(pool_->move(page, PageState::kImporting, PageState::kHeld).ok());
  const TreeMark before = mark_tree();
  if (below != nullptr) cache_->count_use(below, 0);  // no node is used less than one below it
  const InsertResult inserted = cache_->insert(space, tokens, pages, {.below = below});
  free_pages(inserted.duplicates, PageState::kHeld);
  note_tree(before);
}

void SequenceMemory::cancel_import(std::span<const PageId> pages) { free_pages(pages, PageState::kImporting); }

void SequenceMemory::free_pages(std::span<const PageId> pages, PageState from) {
  for (const PageId page : pages) {
    const Status status = pool_->release(page, from);
    if (!status.ok()) LOG_ERROR("kv pages: {}", status.to_string());
  }
}

bool SequenceMemory::set_lease(uint64_t number, RadixNode* node, int32_t pages) {
  // Without a lock the old lease's end below could let the node go.
  CHECK(node != nullptr && node->locks > 0 && pages > 0);
  const auto old = leases_.find(number);
  const int32_t others = leased_pages_ - (old == leases_.end() ? 0 : old->second.pages);
  if (others + pages > page_count_ / kLeaseShare) return false;
  cache_->lock(node);
  end_lease(number);
  leases_.emplace(number, Lease{node, pages});
  leased_pages_ += pages;
  return true;
}

void SequenceMemory::end_lease(uint64_t number) {
  const auto lease = leases_.find(number);
  if (lease == leases_.end()) return;
  leased_pages_ -= lease->second.pages;
  cache_->unlock(lease->second.node);
  leases_.erase(lease);
}

bool SequenceMemory::revoke_leases() {
  if (leases_.empty()) return false;
  revoked_leases_ += leases_.size();
  while (!leases_.empty()) end_lease(leases_.begin()->first);
  return true;
}

}  // namespace millrace
