// What a request asks for: match, peek, insert, lock. Pages that come and go are in radix_tiers.cc.
#include "kv/radix_cache.h"

#include <algorithm>
#include <utility>

namespace millrace {

RadixCache::RadixCache(PagePool& pool, int32_t page_size, CacheOptions options, PagePool* host, BlockHash hash)
    : options_(options),
      tree_(page_size, hash),
      pool_(&pool, options.eviction),
      host_(host, options.eviction),
      events_(options.events, page_size) {
  CHECK(page_size > 0 && validate(options).ok());
}

// Whole pages, and never the last token.
std::span<const int32_t> RadixCache::matchable(std::span<const int32_t> tokens) const {
  if (tokens.empty()) return {};
  const auto page = static_cast<std::size_t>(page_size());
  return tokens.first((tokens.size() - 1) / page * page);
}

MatchResult RadixCache::match_prefix(const CacheNamespace& space, std::span<const int32_t> tokens) {
  MatchResult result;
  tokens = matchable(tokens);
  RadixNode* node = tree_.find_root(space);
  if (node == nullptr || tokens.empty()) return result;
  ++tick_;
  mark_used(node);
  while (!tokens.empty()) {
    RadixNode* child = tree_.find_child(*node, tokens);
    if (child == nullptr) break;
    const int32_t common = tree_.common_pages(*child, tokens);
    // The hash has found a child whose first page is equal, so `common` is at least 1, as split() needs.
    if (common < tree_.length(*child)) child = split(child, common);
    // A node that is in the pool in part becomes two, so that a lock on the first covers just the pages found there.
    const auto in_pool = static_cast<int32_t>(child->pages.size());
    if (in_pool > 0 && in_pool < tree_.length(*child)) child = split(child, in_pool);
    mark_used(child);
    if (child->in_pool()) {
      result.pages.insert(result.pages.end(), child->pages.begin(), child->pages.end());
      result.node = child;
    } else {
      result.host_pages += tree_.length(*child);
      result.host_node = child;
    }
    tokens = tokens.subspan(child->tokens.size());
    node = child;
  }
  return result;
}

PeekResult RadixCache::peek(const CacheNamespace& space, std::span<const int32_t> tokens) const {
  PeekResult result;
  tokens = matchable(tokens);
  const RadixNode* node = tree_.find_root(space);
  if (node == nullptr) return result;
  while (!tokens.empty()) {
    node = tree_.find_child(*node, tokens);
    if (node == nullptr) break;
    const int32_t common = tree_.common_pages(*node, tokens);
    const int32_t in_pool = std::min(common, static_cast<int32_t>(node->pages.size()));
    result.pages += in_pool;
    result.host_pages += common - in_pool;
    if (common < tree_.length(*node)) break;
    tokens = tokens.subspan(node->tokens.size());
  }
  return result;
}

InsertResult RadixCache::insert(const CacheNamespace& space, std::span<const int32_t> tokens,
                                std::span<const PageId> pages, InsertOptions options) {
  CHECK(tokens.size() == pages.size() * static_cast<std::size_t>(page_size()));
  // What is not wholly in the pool cannot have children there.
  CHECK(options.below == nullptr || (options.below->locks > 0 && static_cast<int32_t>(options.below->pages.size()) ==
                                                                     tree_.length(*options.below)));
  InsertResult result;
  result.node = options.below;
  if (pages.empty()) return result;
  ++tick_;
  RadixNode* node = options.below == nullptr ? root_of(space) : options.below;
  // No use is counted: the request was counted on the path above when it came to `below`, and a root counts none.
  use(node, options.priority, 0);
  while (!pages.empty()) {
    RadixNode* child = tree_.find_child(*node, tokens);
    const bool known = child != nullptr;
    if (known) {
      const int32_t common = tree_.common_pages(*child, tokens);
      if (common < tree_.length(*child)) child = split(child, common);
    } else {
      child = new_child(node, tokens);
    }
    const auto count = static_cast<std::size_t>(tree_.length(*child));
    adopt_known(*child, pages.first(count), result);
    // From the root down, with every node of the path: so a node has never fewer hits than its child (the header's
    // invariant, on which back_up_path() relies).
    ++child->hits;
    child->priority = known ? std::max(child->priority, options.priority) : options.priority;
    mark_used(child);
    tokens = tokens.subspan(child->tokens.size());
    pages = pages.subspan(count);
    node = child;
  }
  result.node = node;
  back_up_path(node);
  return result;
}

// The caller's `pages` for one node: where the pool has the node's page already, that one stands; the others come into
// the pool with this.
void RadixCache::adopt_known(RadixNode& child, std::span<const PageId> pages, InsertResult& result) {
  const std::size_t known = child.pages.size();
  CHECK(known <= pages.size());
  // Two requests have computed the same tokens at the same time: the first one's pages stay, and the caller frees its
  // own.
  for (std::size_t i = 0; i < known; ++i) {
    if (pages[i] != child.pages[i]) result.duplicates.push_back(pages[i]);
  }
  if (known < pages.size()) add_pool_pages(&child, pages.subspan(known));
  result.pages.insert(result.pages.end(), child.pages.begin(), child.pages.end());
}

RadixNode* RadixCache::root_of(const CacheNamespace& space) {
  if (RadixNode* root = tree_.find_root(space)) return root;
  RadixNode* root = tree_.add_root(space, tick_);
  events_.add_digests(root);
  return root;
}

RadixNode* RadixCache::new_child(RadixNode* parent, std::span<const int32_t> tokens) {
  RadixNode* child = tree_.add_child(parent, tokens, tick_);
  events_.add_digests(child);
  return child;
}

RadixNode* RadixCache::split(RadixNode* node, int32_t pages) {
  // In a tier where the lower end keeps pages, the upper one has a child and is not evicted; where all pages went up,
  // the upper one is what can be evicted.
  RadixNode* upper = tree_.split(node, pages);
  update_queues(node);
  update_queues(upper);
  return upper;
}

void RadixCache::mark_used(RadixNode* node) {
  node->last_access = tick_;
  pool_.queue().requeue(node);
  host_.queue().requeue(node);
}

// After a change of the node's locks, pages or children.
void RadixCache::update_queues(RadixNode* node) {
  pool_.queue().update(node);
  host_.queue().update(node);
}

// Marks the complete path of `node` as used, and counts it.
void RadixCache::use(RadixNode* node, int32_t priority, int32_t uses) {
  for (; node != nullptr; node = node->parent) {
    if (!node->is_root()) {
      node->hits += uses;
      node->priority = std::max(node->priority, priority);
    }
    mark_used(node);
  }
}

void RadixCache::count_use(RadixNode* node, int32_t priority) {
  if (node == nullptr) return;
  CHECK(node->locks > 0);
  ++tick_;
  use(node, priority, 1);
  back_up_path(node);
}

void RadixCache::lock(RadixNode* node) {
  for (; node != nullptr; node = node->parent) {
    // Every node of the path counts, since another path may share it; only the first lock of a node changes what can be
    // evicted.
    if (node->locks++ > 0) continue;
    locked_pages_ += static_cast<int32_t>(node->pages.size());
    update_queues(node);
  }
}

void RadixCache::unlock(RadixNode* node) {
  for (; node != nullptr; node = node->parent) {
    CHECK(node->locks > 0);
    if (--node->locks > 0) continue;
    locked_pages_ -= static_cast<int32_t>(node->pages.size());
    update_queues(node);
  }
}

}  // namespace millrace
