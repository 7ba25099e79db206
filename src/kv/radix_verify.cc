// RadixCache::verify: every invariant of the header, recounted from the nodes.
#include <algorithm>

#include "kv/radix_cache.h"

namespace millrace {

namespace {

// The links between a node and its children, seen from above.
Status verify_children(const RadixNode& node) {
  int64_t locks = 0;
  for (const auto& [hash, child] : node.children) {
    if (child->parent != &node) return internal_error("node {} has a child of another parent", node.serial);
    if (child->last_access > node.last_access) {
      return internal_error("node {} was used after its parent {}", child->serial, node.serial);
    }
    locks += child->locks;
  }
  if (node.locks < locks) {
    return internal_error("node {} has {} locks; its children have {}", node.serial, node.locks, locks);
  }
  return ok_status();
}

}  // namespace

Status RadixCache::verify() const {
  int32_t cached = 0;
  int32_t locked = 0;
  std::size_t leaves = 0;
  for (const RadixNode& node : nodes_) {
    RETURN_IF_ERROR(verify_children(node));
    if (node.parent == nullptr) {
      if (!node.pages.empty()) return internal_error("root {} has pages", node.serial);
      continue;
    }
    RETURN_IF_ERROR(verify_edge(node));
    const int32_t pages = static_cast<int32_t>(node.pages.size());
    cached += pages;
    if (node.locks > 0) locked += pages;
    const bool evictable = node.locks == 0 && node.children.empty();
    leaves += evictable;
    if (evictable != (evictable_.count(const_cast<RadixNode*>(&node)) == 1)) {
      return internal_error("node {} is wrong in the eviction order", node.serial);
    }
  }
  if (leaves != evictable_.size()) {
    return internal_error("{} nodes in the eviction order; {} unlocked leaves", evictable_.size(), leaves);
  }
  if (cached != cached_pages_ || locked != locked_pages_ || cached != pool_.books().cached()) {
    return internal_error("the tree says {} pages, {} locked; counted {}, {} locked; the pool says {}", cached_pages_,
                          locked_pages_, cached, locked, pool_.books().cached());
  }
  return ok_status();
}

// A node's own tokens and pages, and its place among its siblings.
Status RadixCache::verify_edge(const RadixNode& node) const {
  if (node.pages.empty() || node.tokens.size() != node.pages.size() * static_cast<std::size_t>(page_size_)) {
    return internal_error("node {} has {} pages and {} tokens; wanted {} tokens a page", node.serial, node.pages.size(),
                          node.tokens.size(), page_size_);
  }
  if (find_child(*node.parent, node.tokens) != &node) {
    return internal_error("node {} is not what its parent finds under its first page", node.serial);
  }
  for (PageId page : node.pages) {
    if (!pool_.contains(page) || pool_.state(page) != PageState::kCached) {
      return internal_error("page {} of node {} is not a cached page", page.value, node.serial);
    }
  }
  return ok_status();
}

}  // namespace millrace
