// Pages come into the two tiers and go: eviction, backup to the host, loading, dropping.
#include <algorithm>
#include <utility>

#include "kv/radix_cache.h"
#include "kv/radix_verify.h"

namespace millrace {

namespace {

constexpr int32_t kSelectiveHits = 2;  // uses from which write_through_selective copies a node

}  // namespace

// `pages`, held by the caller, go on where the node's run in the pool ends.
void RadixCache::add_pool_pages(RadixNode* node, std::span<const PageId> pages) {
  const std::size_t first = node->pages.size();
  CHECK(first + pages.size() <= static_cast<std::size_t>(tree_.length(*node)));
  pool_.append(node, pages);
  if (node->locks > 0) locked_pages_ += static_cast<int32_t>(pages.size());
  // The parent has a child in the tier now, so it can no longer be evicted.
  if (first == 0) update_queues(node->parent);
  update_queues(node);
  events_.note_stored(*node, KvMedium::kPool, static_cast<int32_t>(first));
}

// The last `count` pages of an unlocked node that no child in the tier continues. The node may be removed with them.
template <KvMedium medium>
void RadixCache::drop_pages(CacheTier<medium>& tier, RadixNode* node, int32_t count) {
  CHECK(count > 0 && count <= static_cast<int32_t>(node->pages_in(medium).size()));
  // Before the pages go: the event needs their digests, which trim() may cut.
  events_.note_removed(*node, medium, static_cast<int32_t>(node->pages_in(medium).size()) - count);
  tier.drop_last(node, count);
  update_queues(node);
  RadixNode* parent = node->parent;
  const bool inner = !parent->is_root();  // a root leaves with its last child
  tree_.trim(node);
  if (inner) update_queues(parent);
}

int32_t RadixCache::evict(int32_t count) {
  int32_t freed = 0;
  while (freed < count) {
    RadixNode* leaf = pool_.queue().first();
    if (leaf == nullptr) break;
    // Its copy is noted, not made. Another request may get the page at once all the same: the runner carries copies out
    // before the rows that would overwrite it (see the header).
    if (host_.exists() && options_.write_policy == WritePolicy::kWriteBack) back_up(leaf);
    // Only as much of the path's end as is needed: what remains is still a valid prefix.
    const int32_t from_leaf = std::min(count - freed, static_cast<int32_t>(leaf->pages.size()));
    drop_pages(pool_, leaf, from_leaf);
    freed += from_leaf;
  }
  counters_.evicted += static_cast<uint64_t>(freed);
  return freed;
}

int32_t RadixCache::evict_host(int32_t count) {
  int32_t freed = 0;
  while (freed < count) {
    RadixNode* leaf = host_.queue().first();
    if (leaf == nullptr) break;
    const int32_t from_leaf = std::min(count - freed, static_cast<int32_t>(leaf->host_pages.size()));
    drop_pages(host_, leaf, from_leaf);
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
  if (!host_.exists()) return;
  while (!node->is_root() && !wants_backup(*node)) node = node->parent;
  if (!node->is_root()) back_up(node);
}

// Copies to the host tier what of the path to `node` is not there yet, from the top on, so that what is in the host
// tier always hangs together with the root. False: the host tier has not enough capacity, and the end of the path is
// not copied.
bool RadixCache::back_up(RadixNode* node) {
  std::vector<RadixNode*> lacking;
  for (RadixNode* n = node; !n->is_root() && static_cast<int32_t>(n->host_pages.size()) < tree_.length(*n);
       n = n->parent) {
    lacking.push_back(n);
  }
  if (lacking.empty()) return true;
  lock(node);  // so that no node of the path is evicted for another
  bool all = true;
  while (all && !lacking.empty()) {
    all = back_up_node(lacking.back());
    lacking.pop_back();
  }
  unlock(node);
  return all;
}

// One node of a locked path, whose parent is in the host tier already. Evicts others from there where pages are short.
// False: not all of its pages could be copied.
bool RadixCache::back_up_node(RadixNode* node) {
  // What is copied to the host is in the pool: a node that lacks pages there has them on the host.
  CHECK(static_cast<int32_t>(node->pages.size()) == tree_.length(*node));
  const std::size_t first = node->host_pages.size();
  const int32_t wanted = tree_.length(*node) - static_cast<int32_t>(first);
  // Evicts nothing of this path: back_up() has locked it.
  if (wanted > host_.pool().free_count()) evict_host(wanted - host_.pool().free_count());
  const int32_t count = std::min(wanted, host_.pool().free_count());
  if (count == 0) return false;
  host_.allocate(node, count);
  for (std::size_t i = first; i < node->host_pages.size(); ++i) {
    copies_.push_back({CopyDirection::kToHost, node->pages[i], node->host_pages[i]});
  }
  counters_.backed_up += static_cast<uint64_t>(count);
  events_.note_stored(*node, KvMedium::kHost, static_cast<int32_t>(first));
  return count == wanted;
}

void RadixCache::load(RadixNode* node, std::span<const PageId> pages) {
  CHECK(node->locks > 0);
  std::vector<RadixNode*> lacking;
  for (; !node->is_root() && static_cast<int32_t>(node->pages.size()) < tree_.length(*node); node = node->parent) {
    lacking.push_back(node);
  }
  while (!lacking.empty()) {
    RadixNode* next = lacking.back();
    lacking.pop_back();
    const std::size_t first = next->pages.size();
    const std::size_t count = next->host_pages.size() - first;
    CHECK(count <= pages.size());
    for (std::size_t i = 0; i < count; ++i) {
      copies_.push_back({CopyDirection::kFromHost, pages[i], next->host_pages[first + i]});
    }
    counters_.loaded += count;
    add_pool_pages(next, pages.first(count));
    pages = pages.subspan(count);
  }
  CHECK(pages.empty());
}

std::vector<PageCopy> RadixCache::take_copies() { return std::exchange(copies_, {}); }

void RadixCache::return_copies(std::vector<PageCopy> copies) {
  copies.insert(copies.end(), copies_.begin(), copies_.end());
  copies_ = std::move(copies);
}

int32_t RadixCache::drop_unlocked(std::optional<uint64_t> keep) {
  return drop_unlocked_of([&](const CacheNamespace& space) { return !keep || space.weight_version != *keep; }, !keep);
}

int32_t RadixCache::drop_version(uint64_t version) {
  return drop_unlocked_of([&](const CacheNamespace& space) { return space.weight_version == version; }, false);
}

bool RadixCache::locks_version(uint64_t version) const {
  return std::ranges::any_of(tree_.roots(), [&](const auto& entry) {
    return entry.first.weight_version == version && entry.second->locks > 0;
  });
}

// `everything`: no namespace is left out.
int32_t RadixCache::drop_unlocked_of(FunctionRef<bool(const CacheNamespace&)> dropped, bool everything) {
  std::vector<RadixNode*> doomed;  // every node behind its parent
  for (const auto& [space, root] : tree_.roots()) {
    if (!dropped(space)) continue;
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
  // One event stands for all of them where nothing stays.
  events_.mute_removals(everything);
  int32_t freed = 0;
  for (auto it = doomed.rbegin(); it != doomed.rend(); ++it) {
    RadixNode* node = *it;
    if (node->locks > 0 || !node->children.empty()) continue;
    const auto in_pool = static_cast<int32_t>(node->pages.size());
    const auto in_host = static_cast<int32_t>(node->host_pages.size());
    if (in_host > 0) drop_pages(host_, node, in_host);
    if (in_pool > 0) drop_pages(pool_, node, in_pool);
    freed += in_pool;
  }
  events_.mute_removals(false);
  if (everything) events_.note_cleared();
  return freed;
}

void RadixCache::continue_events(KvEvents before) {
  CHECK(node_count() == 0);
  events_.continue_from(std::move(before));
}

Status RadixCache::verify() const { return verify_radix_cache({tree_, pool_, host_, locked_pages_, options_.events}); }

}  // namespace millrace
