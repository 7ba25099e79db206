// The nodes of the tree: found, made, split, removed, and kept in the eviction orders.
#include <algorithm>
#include <cstring>

#include "kv/radix_cache.h"

namespace millrace {

namespace {

constexpr uint64_t kSlruProtectedHits = 2;
constexpr std::size_t kCompareTokens = 64;  // at once, while they are equal

template <typename T>
void move_front(std::vector<T>& from, std::size_t count, std::vector<T>& to) {
  const auto cut = from.begin() + static_cast<std::ptrdiff_t>(std::min(count, from.size()));
  to.assign(from.begin(), cut);
  from.erase(from.begin(), cut);
}

}  // namespace

std::span<const int32_t> RadixCache::block(const RadixNode& node, int32_t index) const {
  return std::span(node.tokens)
      .subspan(static_cast<std::size_t>(index) * static_cast<std::size_t>(page_size_),
               static_cast<std::size_t>(page_size_));
}

// `tokens` holds at least one page.
RadixNode* RadixCache::find_child(const RadixNode& node, std::span<const int32_t> tokens) const {
  if (node.children.empty()) return nullptr;
  const auto wanted = tokens.first(static_cast<std::size_t>(page_size_));
  return node.children.find(hash_(wanted),
                            [&](const RadixNode& child) { return std::ranges::equal(block(child, 0), wanted); });
}

// Whole pages that the node's tokens and `tokens` begin with in common.
int32_t RadixCache::common_pages(const RadixNode& node, std::span<const int32_t> tokens) const {
  const std::size_t limit = std::min(node.tokens.size(), tokens.size());
  std::size_t equal = 0;
  while (equal + kCompareTokens <= limit &&
         std::memcmp(&node.tokens[equal], &tokens[equal], kCompareTokens * sizeof(int32_t)) == 0) {
    equal += kCompareTokens;
  }
  while (equal < limit && node.tokens[equal] == tokens[equal]) ++equal;
  return static_cast<int32_t>(equal) / page_size_;
}

RadixNode& RadixCache::add_node(RadixNode* parent) {
  RadixNode& node = nodes_.emplace_back();
  node.self = std::prev(nodes_.end());
  node.parent = parent;
  node.created = node.last_access = tick_;
  node.serial = next_serial_++;
  return node;
}

// A child with tokens and without pages: the caller adds them.
RadixNode* RadixCache::new_child(RadixNode* parent, std::span<const int32_t> tokens) {
  RadixNode& node = add_node(parent);
  node.tokens.assign(tokens.begin(), tokens.end());
  node.block_hash = hash_(block(node, 0));
  parent->children.insert(node.block_hash, &node);
  if (options_.events) hash_pages(&node);
  return &node;
}

// Cuts the first `count` pages off `node` into a new node above it, and returns that one. `node` stays the lower end,
// so that whoever locked it still holds the whole path. What reading cuts in two becomes no younger: the new node
// inherits the creation too.
RadixNode* RadixCache::split(RadixNode* node, int32_t count) {
  CHECK(count > 0 && count < length(*node));
  const auto pages = static_cast<std::size_t>(count);
  RadixNode& upper = add_node(node->parent);
  upper.block_hash = node->block_hash;
  upper.locks = node->locks;
  upper.hits = node->hits;
  upper.priority = node->priority;
  upper.last_access = node->last_access;
  upper.created = node->created;
  node->parent->children.replace(node->block_hash, node, &upper);
  move_front(node->tokens, pages * static_cast<std::size_t>(page_size_), upper.tokens);
  move_front(node->pages, pages, upper.pages);
  move_front(node->host_pages, pages, upper.host_pages);
  move_front(node->digests, pages, upper.digests);

  node->parent = &upper;
  node->block_hash = hash_(block(*node, 0));
  upper.children.insert(node->block_hash, node);
  upper.pool_children = node->in_pool();
  upper.host_children = node->in_host();
  update_orders(node);
  update_orders(&upper);
  return &upper;
}

// After pages went: the node ends where the longer of its runs ends, or leaves the tree with its last page.
void RadixCache::trim(RadixNode* node) {
  const std::size_t kept = std::max(node->pages.size(), node->host_pages.size());
  if (kept == 0) return remove(node);
  if (static_cast<int32_t>(kept) < length(*node)) {
    CHECK(node->children.empty());
    node->tokens.resize(kept * static_cast<std::size_t>(page_size_));
    if (options_.events) node->digests.resize(kept);
  }
  update_orders(node);
}

// Takes a leaf, whose pages are given back already, out of the tree. An empty root leaves with it.
void RadixCache::remove(RadixNode* leaf) {
  CHECK(leaf->children.empty() && leaf->locks == 0 && leaf->pages.empty() && leaf->host_pages.empty());
  update_orders(leaf);
  RadixNode* parent = leaf->parent;
  parent->children.erase(leaf->block_hash, leaf);
  nodes_.erase(leaf->self);
  if (!parent->is_root() || !parent->children.empty()) return;
  roots_.erase(roots_.find(*parent->space));
  nodes_.erase(parent->self);
}

// The tuples of EvictionStrategy as unsigned numbers, the smallest first.
RadixCache::EvictKey RadixCache::key_of(const RadixNode& node) const {
  const auto hits = static_cast<uint64_t>(node.hits);
  switch (options_.eviction) {
    case EvictionStrategy::kLru:
      return {0, node.last_access, node.serial};
    case EvictionStrategy::kLfu:
      return {hits, node.last_access, node.serial};
    case EvictionStrategy::kFifo:
      return {0, node.created, node.serial};
    case EvictionStrategy::kMru:
      return {0, ~node.last_access, node.serial};
    case EvictionStrategy::kFilo:
      return {0, ~node.created, node.serial};
    case EvictionStrategy::kPriority:
      return {static_cast<uint64_t>(int64_t{node.priority} - INT32_MIN), node.last_access, node.serial};
    case EvictionStrategy::kSlru:
      return {hits >= kSlruProtectedHits, node.last_access, node.serial};
  }
  CHECK(false);
  return {};
}

void RadixCache::touch(RadixNode* node) {
  node->last_access = tick_;
  reorder(node);
}

// After a change of what key_of() looks at.
void RadixCache::reorder(RadixNode* node) {
  if (pool_order_.contains(node)) pool_order_.update(node, key_of(*node));
  if (host_order_.contains(node)) host_order_.update(node, key_of(*node));
}

// The order of a tier holds a node if and only if it is unlocked and its last page there is the last of its path there.
void RadixCache::update_orders(RadixNode* node) {
  const auto keep = [&](auto& order, bool wanted) {
    if (wanted == order.contains(node)) return;
    if (wanted) {
      order.push(node, key_of(*node));
    } else {
      order.erase(node);
    }
  };
  const bool free = !node->is_root() && node->locks == 0;
  keep(pool_order_, free && node->in_pool() && node->pool_children == 0);
  keep(host_order_, free && node->in_host() && node->host_children == 0);
}

}  // namespace millrace
