// What a request asks for: match, peek, insert, load, lock.
#include "kv/radix_cache.h"

#include <algorithm>
#include <utility>

namespace millrace {

RadixCache::RadixCache(PagePool& pool, int32_t page_size, CacheOptions options, PagePool* host, BlockHash hash)
    : pool_(pool), host_(host), page_size_(page_size), options_(options), hash_(hash) {
  CHECK(page_size > 0 && validate(options).ok());
}

// Whole pages, and never the last token.
std::span<const int32_t> RadixCache::matchable(std::span<const int32_t> tokens) const {
  if (tokens.empty()) return {};
  const auto page = static_cast<std::size_t>(page_size_);
  return tokens.first((tokens.size() - 1) / page * page);
}

MatchResult RadixCache::match_prefix(const CacheNamespace& space, std::span<const int32_t> tokens) {
  MatchResult result;
  tokens = matchable(tokens);
  const auto root = roots_.find(space);
  if (root == roots_.end() || tokens.empty()) return result;
  ++tick_;
  RadixNode* node = root->second;
  touch(node);
  while (!tokens.empty()) {
    RadixNode* child = find_child(*node, tokens);
    if (child == nullptr) break;
    const int32_t common = common_pages(*child, tokens);
    if (common < length(*child)) child = split(child, common);
    // A node that is in the pool in part becomes two, so that a lock on the first covers just the pages found there.
    const auto in_pool = static_cast<int32_t>(child->pages.size());
    if (in_pool > 0 && in_pool < length(*child)) child = split(child, in_pool);
    touch(child);
    if (child->in_pool()) {
      result.pages.insert(result.pages.end(), child->pages.begin(), child->pages.end());
      result.node = child;
    } else {
      result.host_pages += length(*child);
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
  const auto root = roots_.find(space);
  if (root == roots_.end()) return result;
  for (const RadixNode* node = root->second; !tokens.empty();) {
    node = find_child(*node, tokens);
    if (node == nullptr) break;
    const int32_t common = common_pages(*node, tokens);
    const int32_t in_pool = std::min(common, static_cast<int32_t>(node->pages.size()));
    result.pages += in_pool;
    result.host_pages += common - in_pool;
    if (common < length(*node)) break;
    tokens = tokens.subspan(node->tokens.size());
  }
  return result;
}

InsertResult RadixCache::insert(const CacheNamespace& space, std::span<const int32_t> tokens,
                                std::span<const PageId> pages, InsertOptions options) {
  CHECK(tokens.size() == pages.size() * static_cast<std::size_t>(page_size_));
  CHECK(options.below == nullptr || options.below->locks > 0);
  InsertResult result;
  result.node = options.below;
  if (pages.empty()) return result;
  ++tick_;
  RadixNode* node = options.below == nullptr ? root_of(space) : options.below;
  use(node, options.priority, 0);
  while (!pages.empty()) {
    RadixNode* child = find_child(*node, tokens);
    const bool known = child != nullptr;
    if (known) {
      const int32_t common = common_pages(*child, tokens);
      if (common < length(*child)) child = split(child, common);
    } else {
      child = new_child(node, tokens);
    }
    const auto count = static_cast<std::size_t>(length(*child));
    adopt_known(*child, pages.first(count), result);
    ++child->hits;
    child->priority = known ? std::max(child->priority, options.priority) : options.priority;
    touch(child);
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
  for (std::size_t i = 0; i < known; ++i) {
    if (pages[i] != child.pages[i]) result.duplicates.push_back(pages[i]);
  }
  if (known < pages.size()) add_pool_pages(&child, pages.subspan(known));
  result.pages.insert(result.pages.end(), child.pages.begin(), child.pages.end());
}

RadixNode* RadixCache::root_of(const CacheNamespace& space) {
  const auto [root, is_new] = roots_.try_emplace(space);
  if (is_new) {
    root->second = &add_node(nullptr);
    root->second->space = &root->first;
    if (options_.events && !space.extra_key.empty()) root->second->digests = {text_digest(space.extra_key)};
  }
  return root->second;
}

// Touches the whole path of `node`, and counts it.
void RadixCache::use(RadixNode* node, int32_t priority, int32_t uses) {
  for (; node != nullptr; node = node->parent) {
    if (!node->is_root()) {
      node->hits += uses;
      node->priority = std::max(node->priority, priority);
    }
    touch(node);
  }
}

void RadixCache::count_use(RadixNode* node, int32_t priority) {
  if (node == nullptr) return;
  CHECK(node->locks > 0);
  ++tick_;
  use(node, priority, 1);
  back_up_path(node);
}

void RadixCache::load(RadixNode* node, std::span<const PageId> pages) {
  CHECK(node->locks > 0);
  std::vector<RadixNode*> lacking;
  for (; !node->is_root() && static_cast<int32_t>(node->pages.size()) < length(*node); node = node->parent) {
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

void RadixCache::lock(RadixNode* node) {
  for (; node != nullptr; node = node->parent) {
    if (node->locks++ > 0) continue;
    locked_pages_ += static_cast<int32_t>(node->pages.size());
    update_orders(node);
  }
}

void RadixCache::unlock(RadixNode* node) {
  for (; node != nullptr; node = node->parent) {
    CHECK(node->locks > 0);
    if (--node->locks > 0) continue;
    locked_pages_ -= static_cast<int32_t>(node->pages.size());
    update_orders(node);
  }
}

std::vector<PageCopy> RadixCache::take_copies() { return std::exchange(copies_, {}); }

void RadixCache::return_copies(std::vector<PageCopy> copies) {
  copies.insert(copies.end(), copies_.begin(), copies_.end());
  copies_ = std::move(copies);
}

}  // namespace millrace
