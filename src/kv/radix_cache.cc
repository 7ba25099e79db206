#include "kv/radix_cache.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace millrace {

namespace {

int32_t page_count(const RadixNode& node) { return static_cast<int32_t>(node.pages.size()); }

}  // namespace

// FNV-1a over whole tokens. It only narrows the search among siblings; equality is decided by the tokens themselves.
uint64_t RadixCache::default_hash(std::span<const int32_t> block) {
  uint64_t hash = 14695981039346656037ull;
  for (int32_t token : block) hash = (hash ^ static_cast<uint32_t>(token)) * 1099511628211ull;
  return hash ^ (hash >> 32);
}

RadixCache::RadixCache(PagePool& pool, int32_t page_size, BlockHash hash)
    : pool_(pool), page_size_(page_size), hash_(hash) {
  CHECK(page_size > 0);
}

MatchResult RadixCache::match_prefix(const CacheNamespace& space, std::span<const int32_t> tokens) {
  MatchResult result;
  const auto root = roots_.find(space);
  if (root == roots_.end() || tokens.empty()) return result;
  const std::size_t usable = (tokens.size() - 1) / static_cast<std::size_t>(page_size_);
  ++tick_;
  RadixNode* last = walk(root->second, tokens.first(usable * static_cast<std::size_t>(page_size_)), result.pages);
  result.node = last->parent == nullptr ? nullptr : last;
  return result;
}

int32_t RadixCache::peek(const CacheNamespace& space, std::span<const int32_t> tokens) const {
  const auto root = roots_.find(space);
  if (root == roots_.end() || tokens.empty()) return 0;
  const std::size_t usable = (tokens.size() - 1) / static_cast<std::size_t>(page_size_);
  tokens = tokens.first(usable * static_cast<std::size_t>(page_size_));
  int32_t pages = 0;
  for (const RadixNode* node = root->second; !tokens.empty();) {
    node = find_child(*node, tokens);
    if (node == nullptr) break;
    const int32_t common = common_pages(*node, tokens);
    pages += common;
    if (common < page_count(*node)) break;
    tokens = tokens.subspan(node->tokens.size());
  }
  return pages * page_size_;
}

InsertResult RadixCache::insert(const CacheNamespace& space, std::span<const int32_t> tokens,
                                std::span<const PageId> pages) {
  CHECK(tokens.size() == pages.size() * static_cast<std::size_t>(page_size_));
  InsertResult result;
  if (pages.empty()) return result;
  ++tick_;
  const auto [root, is_new] = roots_.try_emplace(space);
  if (is_new) {
    root->second = new_node(nullptr, {}, {});
    root->second->space = &root->first;
  }
  RadixNode* last = walk(root->second, tokens, result.pages);
  const std::size_t known = result.pages.size();
  for (std::size_t i = 0; i < known; ++i) {
    if (pages[i] != result.pages[i]) result.duplicates.push_back(pages[i]);
  }
  if (known < pages.size()) {
    for (PageId page : pages.subspan(known)) {
      const Status moved = pool_.move(page, PageState::kHeld, PageState::kCached);
      CHECK(moved.ok());  // the caller inserted a page that it does not hold
      result.pages.push_back(page);
    }
    last = new_node(last, tokens.subspan(known * static_cast<std::size_t>(page_size_)), pages.subspan(known));
  }
  result.node = last;
  return result;
}

// Follows `tokens` (whole pages) as far as they are cached, touches the path, appends its pages, splits the node where
// the path ends. Returns the last node, which may be the root.
RadixNode* RadixCache::walk(RadixNode* root, std::span<const int32_t> tokens, std::vector<PageId>& pages) {
  RadixNode* node = root;
  touch(root);
  while (!tokens.empty()) {
    RadixNode* child = find_child(*node, tokens);
    if (child == nullptr) break;
    const int32_t common = common_pages(*child, tokens);
    node = common < page_count(*child) ? split(child, common) : child;
    touch(node);
    pages.insert(pages.end(), node->pages.begin(), node->pages.end());
    tokens = tokens.subspan(node->tokens.size());
  }
  return node;
}

void RadixCache::lock(RadixNode* node) {
  for (; node != nullptr; node = node->parent) {
    if (node->locks++ > 0) continue;
    locked_pages_ += page_count(*node);
    update_evictable(node);
  }
}

void RadixCache::unlock(RadixNode* node) {
  for (; node != nullptr; node = node->parent) {
    CHECK(node->locks > 0);
    if (--node->locks > 0) continue;
    locked_pages_ -= page_count(*node);
    update_evictable(node);
  }
}

int32_t RadixCache::evict(int32_t count) {
  int32_t freed = 0;
  while (freed < count && !evictable_.empty()) {
    RadixNode* leaf = *evictable_.begin();
    // Only as much of the path's end as is needed: what remains is still a valid prefix.
    const int32_t from_leaf = std::min(count - freed, page_count(*leaf));
    for (int32_t i = 0; i < from_leaf; ++i) {
      const Status released = pool_.release(leaf->pages.back(), PageState::kCached);
      if (!released.ok()) LOG_ERROR("radix cache: {}", released.to_string());
      leaf->pages.pop_back();
    }
    cached_pages_ -= from_leaf;
    freed += from_leaf;
    if (leaf->pages.empty()) {
      remove_leaf(leaf);
    } else {
      leaf->tokens.resize(leaf->pages.size() * static_cast<std::size_t>(page_size_));
    }
  }
  return freed;
}

std::span<const int32_t> RadixCache::first_block(const RadixNode& node) const {
  return std::span(node.tokens).first(static_cast<std::size_t>(page_size_));
}

RadixNode* RadixCache::find_child(const RadixNode& node, std::span<const int32_t> tokens) const {
  const auto block = tokens.first(static_cast<std::size_t>(page_size_));
  const auto [first, last] = node.children.equal_range(hash_(block));
  for (auto it = first; it != last; ++it) {
    if (std::ranges::equal(first_block(*it->second), block)) return it->second;
  }
  return nullptr;
}

// Whole pages that the node's tokens and `tokens` begin with in common.
int32_t RadixCache::common_pages(const RadixNode& node, std::span<const int32_t> tokens) const {
  const std::size_t limit = std::min(node.tokens.size(), tokens.size());
  const auto [mine, theirs] =
      std::mismatch(node.tokens.begin(), node.tokens.begin() + static_cast<std::ptrdiff_t>(limit), tokens.begin());
  return static_cast<int32_t>((mine - node.tokens.begin()) / page_size_);
}

RadixNode* RadixCache::new_node(RadixNode* parent, std::span<const int32_t> tokens, std::span<const PageId> pages) {
  RadixNode& node = nodes_.emplace_back();
  node.self = std::prev(nodes_.end());
  node.tokens.assign(tokens.begin(), tokens.end());
  node.pages.assign(pages.begin(), pages.end());
  node.last_access = tick_;
  node.serial = next_serial_++;
  if (parent == nullptr) return &node;
  node.parent = parent;
  parent->children.emplace(hash_(first_block(node)), &node);
  cached_pages_ += page_count(node);
  update_evictable(parent);
  update_evictable(&node);
  return &node;
}

// Cuts the first `count` pages off `node` into a new node above it, and returns that one. `node` stays the lower end,
// so that whoever locked it still holds the whole path.
RadixNode* RadixCache::split(RadixNode* node, int32_t count) {
  CHECK(count > 0 && count < page_count(*node));
  const std::ptrdiff_t cut = static_cast<std::ptrdiff_t>(count) * page_size_;
  RadixNode* parent = node->parent;
  RadixNode& upper = nodes_.emplace_back();
  upper.self = std::prev(nodes_.end());
  upper.parent = parent;
  upper.locks = node->locks;
  upper.last_access = node->last_access;
  upper.serial = next_serial_++;
  upper.tokens.assign(node->tokens.begin(), node->tokens.begin() + cut);
  upper.pages.assign(node->pages.begin(), node->pages.begin() + count);
  find_entry(*node)->second = &upper;

  node->tokens.erase(node->tokens.begin(), node->tokens.begin() + cut);
  node->pages.erase(node->pages.begin(), node->pages.begin() + count);
  node->parent = &upper;
  upper.children.emplace(hash_(first_block(*node)), node);
  return &upper;
}

// Takes a leaf, whose pages are freed already, out of the tree. Its parent may become the next leaf; an empty root
// leaves with it.
void RadixCache::remove_leaf(RadixNode* leaf) {
  CHECK(leaf->children.empty() && leaf->locks == 0);
  evictable_.erase(leaf);
  RadixNode* parent = leaf->parent;
  parent->children.erase(find_entry(*leaf));
  nodes_.erase(leaf->self);
  if (parent->parent != nullptr) return update_evictable(parent);
  if (!parent->children.empty()) return;
  roots_.erase(roots_.find(*parent->space));
  nodes_.erase(parent->self);
}

// The entry of a node in its parent's map.
RadixNode::Children::iterator RadixCache::find_entry(const RadixNode& node) const {
  const auto [first, last] = node.parent->children.equal_range(hash_(first_block(node)));
  const auto entry = std::find_if(first, last, [&](const auto& candidate) { return candidate.second == &node; });
  CHECK(entry != last);
  return entry;
}

void RadixCache::touch(RadixNode* node) {
  const bool ordered = evictable_.erase(node) > 0;
  node->last_access = tick_;
  if (ordered) evictable_.insert(node);
}

// The eviction order holds a node if and only if it is an unlocked leaf.
void RadixCache::update_evictable(RadixNode* node) {
  if (node->parent == nullptr) return;
  if (node->locks == 0 && node->children.empty()) {
    evictable_.insert(node);
  } else {
    evictable_.erase(node);
  }
}

}  // namespace millrace
