#include "kv/radix_tree.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "base/status.h"
#include "kv/indexed_heap.h"

namespace millrace {

namespace {

constexpr std::size_t kCompareTokens = 64;  // at once, while they are equal

// A run may be shorter than the cut, where its tier does not have all pages of the node: then all of it is the upper
// end's.
template <typename T>
void move_front(std::vector<T>& from, std::size_t count, std::vector<T>& to) {
  const auto cut = from.begin() + static_cast<std::ptrdiff_t>(std::min(count, from.size()));
  to.assign(from.begin(), cut);
  from.erase(from.begin(), cut);
}

}  // namespace

RadixNode* RadixTree::find_root(const CacheNamespace& space) const {
  const auto root = roots_.find(space);
  return root == roots_.end() ? nullptr : root->second;
}

RadixNode* RadixTree::find_child(const RadixNode& node, std::span<const int32_t> tokens) const {
  CHECK(tokens.size() >= static_cast<std::size_t>(page_size_));
  if (node.children.empty()) return nullptr;
  // The hash of one page finds the candidates; the tokens decide. Colliding prompts cost time and never share pages.
  const auto wanted = tokens.first(static_cast<std::size_t>(page_size_));
  return node.children.find(hash_(wanted),
                            [&](const RadixNode& child) { return std::ranges::equal(first_page(child), wanted); });
}

int32_t RadixTree::common_pages(const RadixNode& node, std::span<const int32_t> tokens) const {
  // By memcmp() in strides, since a node may have thousands of tokens and most matches are complete; the last stride is
  // compared token by token to find where it differs.
  const std::size_t limit = std::min(node.tokens.size(), tokens.size());
  std::size_t equal = 0;
  while (equal + kCompareTokens <= limit &&
         std::memcmp(&node.tokens[equal], &tokens[equal], kCompareTokens * sizeof(int32_t)) == 0) {
    equal += kCompareTokens;
  }
  while (equal < limit && node.tokens[equal] == tokens[equal]) ++equal;
  return static_cast<int32_t>(equal) / page_size_;
}

RadixNode& RadixTree::add_node(RadixNode* parent, uint64_t tick) {
  RadixNode& node = nodes_.emplace_back();
  // std::list: pointers to nodes stay good whatever is added or removed, and a node erases itself in O(1).
  node.self = std::prev(nodes_.end());
  node.parent = parent;
  node.created = node.last_access = tick;
  node.serial = next_serial_++;
  return node;
}

RadixNode* RadixTree::add_root(const CacheNamespace& space, uint64_t tick) {
  const auto [root, is_new] = roots_.try_emplace(space);
  CHECK(is_new);
  root->second = &add_node(nullptr, tick);
  // A map's keys do not move, so the node refers to the one in roots_ instead of having a copy.
  root->second->space = &root->first;
  return root->second;
}

RadixNode* RadixTree::add_child(RadixNode* parent, std::span<const int32_t> tokens, uint64_t tick) {
  CHECK(!tokens.empty() && tokens.size() % static_cast<std::size_t>(page_size_) == 0);
  RadixNode& node = add_node(parent, tick);
  node.tokens.assign(tokens.begin(), tokens.end());
  node.block_hash = hash_(first_page(node));
  parent->children.insert(node.block_hash, &node);
  return &node;
}

// What reading cuts in two becomes no younger: the new node inherits the creation too.
RadixNode* RadixTree::split(RadixNode* node, int32_t count) {
  CHECK(count > 0 && count < length(*node));
  const auto pages = static_cast<std::size_t>(count);
  RadixNode& upper = add_node(node->parent, node->created);
  upper.block_hash = node->block_hash;
  // A lock of the lower end is one of its path, so the new node in it has the same locks. No pages are counted anew:
  // locked_pages_ of the cache stays as it is.
  upper.locks = node->locks;
  upper.hits = node->hits;
  upper.priority = node->priority;
  upper.last_access = node->last_access;
  // Under the same hash: the new node begins with the page that `node` began with.
  node->parent->children.replace(node->block_hash, node, &upper);
  // The lower end keeps its address, which requests hold, and what its children refer to.
  move_front(node->tokens, pages * static_cast<std::size_t>(page_size_), upper.tokens);
  move_front(node->pages, pages, upper.pages);
  move_front(node->host_pages, pages, upper.host_pages);
  move_front(node->digests, pages, upper.digests);

  node->parent = &upper;
  node->block_hash = hash_(first_page(*node));
  upper.children.insert(node->block_hash, node);
  // One child, where it has pages left in the tier. The queues do not know of this yet: the cache updates both ends.
  upper.pool_children = node->in_pool();
  upper.host_children = node->in_host();
  return &upper;
}

void RadixTree::trim(RadixNode* node) {
  const std::size_t kept = std::max(node->pages.size(), node->host_pages.size());
  if (kept == 0) return remove(node);
  if (static_cast<int32_t>(kept) == length(*node)) return;
  // No child may go on behind the pages that are dropped: its position would be another. And a run that is longer than
  // the tokens would give its last pages the keys of others.
  CHECK(node->children.empty() && static_cast<int32_t>(kept) < length(*node));
  node->tokens.resize(kept * static_cast<std::size_t>(page_size_));
  if (!node->digests.empty()) node->digests.resize(kept);
}

void RadixTree::remove(RadixNode* leaf) {
  CHECK(leaf->children.empty() && leaf->locks == 0 && leaf->pages.empty() && leaf->host_pages.empty());
  // A queue that still has it would evict a node that is gone.
  CHECK(leaf->pool_heap_index == kNotInHeap && leaf->host_heap_index == kNotInHeap);
  RadixNode* parent = leaf->parent;
  parent->children.erase(leaf->block_hash, leaf);
  nodes_.erase(leaf->self);
  // An inner node stays without children: it has pages of its own. A root has none, and is of no use without a child.
  if (!parent->is_root() || !parent->children.empty()) return;
  CHECK(parent->locks == 0);
  roots_.erase(roots_.find(*parent->space));
  nodes_.erase(parent->self);
}

}  // namespace millrace
