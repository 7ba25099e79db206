// Pages come into the two tiers and go: eviction, backup to the host, dropping.
#include <algorithm>

#include "base/log.h"
#include "kv/radix_cache.h"

namespace millrace {

namespace {

constexpr int32_t kSelectiveHits = 2;  // uses from which write_through_selective copies a node

// A page that is not cached is a bug; it is logged here and found again by verify().
void free_last(PagePool& pool, std::vector<PageId>& pages, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const Status released = pool.release(pages.back(), PageState::kCached);
    if (!released.ok()) LOG_ERROR("radix cache: {}", released.to_string());
    pages.pop_back();
  }
}

}  // namespace

// `pages`, held by the caller, go on where the node's run in the pool ends.
void RadixCache::add_pool_pages(RadixNode* node, std::span<const PageId> pages) {
  const std::size_t first = node->pages.size();
  for (PageId page : pages) {
    const Status moved = pool_.move(page, PageState::kHeld, PageState::kCached);
    CHECK(moved.ok());  // the caller inserted a page that it does not hold
    node->pages.push_back(page);
  }
  const auto count = static_cast<int32_t>(pages.size());
  cached_pages_ += count;
  if (node->locks > 0) locked_pages_ += count;
  if (first == 0) {
    ++node->parent->pool_children;
    update_orders(node->parent);
  }
  update_orders(node);
  note_stored(*node, KvMedium::kPool, static_cast<int32_t>(first));
}

// The last `count` pages of an unlocked node that no child in the pool continues.
void RadixCache::drop_pool_pages(RadixNode* node, int32_t count) {
  CHECK(node->locks == 0 && node->pool_children == 0);
  const auto first = static_cast<int32_t>(node->pages.size()) - count;
  note_removed(*node, KvMedium::kPool, first);
  free_last(pool_, node->pages, static_cast<std::size_t>(count));
  cached_pages_ -= count;
  RadixNode* parent = node->parent;
  if (first == 0) --parent->pool_children;
  const bool inner = !parent->is_root();  // a root leaves with its last child
  trim(node);
  if (inner) update_orders(parent);
}

void RadixCache::drop_host_pages(RadixNode* node, int32_t count) {
  CHECK(node->locks == 0 && node->host_children == 0);
  const auto first = static_cast<int32_t>(node->host_pages.size()) - count;
  note_removed(*node, KvMedium::kHost, first);
  free_last(*host_, node->host_pages, static_cast<std::size_t>(count));
  host_pages_ -= count;
  RadixNode* parent = node->parent;
  if (first == 0) --parent->host_children;
  const bool inner = !parent->is_root();
  trim(node);
  if (inner) update_orders(parent);
}

int32_t RadixCache::evict(int32_t count) {
  int32_t freed = 0;
  while (freed < count && !pool_order_.empty()) {
    RadixNode* leaf = pool_order_.top();
    if (host_ != nullptr && options_.write_policy == WritePolicy::kWriteBack) back_up(leaf);
    // Only as much of the path's end as is needed: what remains is still a valid prefix.
    const int32_t from_leaf = std::min(count - freed, static_cast<int32_t>(leaf->pages.size()));
    drop_pool_pages(leaf, from_leaf);
    freed += from_leaf;
  }
  counters_.evicted += static_cast<uint64_t>(freed);
  return freed;
}

int32_t RadixCache::evict_host(int32_t count) {
  int32_t freed = 0;
  while (freed < count && !host_order_.empty()) {
    RadixNode* leaf = host_order_.top();
    const int32_t from_leaf = std::min(count - freed, static_cast<int32_t>(leaf->host_pages.size()));
    drop_host_pages(leaf, from_leaf);
    freed += from_leaf;
  }
  counters_.host_evicted += static_cast<uint64_t>(freed);
  return freed;
}

bool RadixCache::wants_backup(const RadixNode& node) const {
  switch (options_.write_policy) {
    case WritePolicy::kWriteThrough:
      return true;
    case WritePolicy::kWriteThroughSelective:
      return node.hits >= kSelectiveHits;
    case WritePolicy::kWriteBack:
      return false;
  }
  return false;
}

// Copies what the write policy wants of the path to `node`. A node was used no more often than its parent, so what is
// wanted is the upper part of the path.
void RadixCache::back_up_path(RadixNode* node) {
  if (host_ == nullptr) return;
  while (!node->is_root() && !wants_backup(*node)) node = node->parent;
  if (!node->is_root()) back_up(node);
}

// Copies to the host tier what of the path to `node` is not there yet, from the top on, so that what is in the host
// tier always hangs together with the root. Makes room by evicting others from the host tier. False: there was not
// enough room, and the end of the path is not copied.
bool RadixCache::back_up(RadixNode* node) {
  std::vector<RadixNode*> lacking;
  for (RadixNode* n = node; !n->is_root() && static_cast<int32_t>(n->host_pages.size()) < length(*n); n = n->parent) {
    lacking.push_back(n);
  }
  if (lacking.empty()) return true;
  lock(node);  // so that the path does not make room for itself
  bool all = true;
  while (all && !lacking.empty()) {
    RadixNode* next = lacking.back();
    lacking.pop_back();
    const std::size_t first = next->host_pages.size();
    const int32_t wanted = length(*next) - static_cast<int32_t>(first);
    if (wanted > host_->free_count()) evict_host(wanted - host_->free_count());
    const int32_t count = std::min(wanted, host_->free_count());
    all = count == wanted;
    if (count == 0) break;
    CHECK(host_->allocate(count, next->host_pages));
    for (std::size_t i = first; i < next->host_pages.size(); ++i) {
      CHECK(host_->move(next->host_pages[i], PageState::kHeld, PageState::kCached).ok());
      copies_.push_back({CopyDirection::kToHost, next->pages[i], next->host_pages[i]});
    }
    host_pages_ += count;
    counters_.backed_up += static_cast<uint64_t>(count);
    if (first == 0) ++next->parent->host_children;
    note_stored(*next, KvMedium::kHost, static_cast<int32_t>(first));
  }
  unlock(node);
  return all;
}

int32_t RadixCache::drop_unlocked(std::optional<uint64_t> keep) {
  std::vector<RadixNode*> doomed;  // every node behind its parent
  bool everything = !keep;
  for (const auto& [space, root] : roots_) {
    if (keep && space.weight_version == *keep) continue;
    everything &= root->locks == 0;
    std::size_t next = doomed.size();
    for (const RadixNode* node = root;; node = doomed[next++]) {
      const auto first = static_cast<std::ptrdiff_t>(doomed.size());
      for (const auto& [hash, child] : node->children) doomed.push_back(child);
      // The order of a hash table with a random key must not be seen outside.
      std::ranges::sort(doomed.begin() + first, doomed.end(), {}, &RadixNode::serial);
      if (next == doomed.size()) break;
    }
  }
  // One event says it all where nothing stays.
  muted_ = everything;
  int32_t freed = 0;
  for (auto it = doomed.rbegin(); it != doomed.rend(); ++it) {
    RadixNode* node = *it;
    if (node->locks > 0 || !node->children.empty()) continue;
    const auto in_pool = static_cast<int32_t>(node->pages.size());
    const auto in_host = static_cast<int32_t>(node->host_pages.size());
    if (in_host > 0) drop_host_pages(node, in_host);
    if (in_pool > 0) drop_pool_pages(node, in_pool);
    freed += in_pool;
  }
  muted_ = false;
  if (everything) note_cleared();
  return freed;
}

}  // namespace millrace
