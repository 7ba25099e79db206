#include "kv/radix_verify.h"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace millrace {

namespace {

// The links between a node and its children, seen from above.
Status verify_children(const RadixNode& node, bool in_pool, bool in_host) {
  int64_t locks = 0;
  int32_t pool_children = 0;
  int32_t host_children = 0;
  for (const auto& [hash, child] : node.children) {
    if (child->parent != &node) return internal_error("node {} has a child of another parent", node.serial);
    if (child->last_access > node.last_access) {
      return internal_error("node {} was used after its parent {}", child->serial, node.serial);
    }
    if (!node.is_root() && (child->hits > node.hits || child->priority > node.priority)) {
      return internal_error("node {} has {} hits at priority {}; its parent {} has {} at {}", child->serial,
                            child->hits, child->priority, node.serial, node.hits, node.priority);
    }
    locks += child->locks;
    pool_children += child->in_pool();
    host_children += child->in_host();
  }
  if (node.locks < locks) {
    return internal_error("node {} has {} locks; its children have {}", node.serial, node.locks, locks);
  }
  if (pool_children != node.pool_children || host_children != node.host_children) {
    return internal_error("node {} counts {} children in the pool and {} on the host; counted {} and {}", node.serial,
                          node.pool_children, node.host_children, pool_children, host_children);
  }
  if ((pool_children > 0 && !in_pool) || (host_children > 0 && !in_host)) {
    return internal_error("node {} is not wholly where its children are", node.serial);
  }
  return ok_status();
}

// A node's own tokens and pages, its children, and its place among its siblings.
Status verify_node(const RadixCacheParts& parts, const RadixNode& node) {
  if (node.is_root()) {
    if (node.in_pool() || node.in_host()) return internal_error("root {} has pages", node.serial);
    return verify_children(node, true, true);
  }
  const std::size_t pages = std::max(node.pages.size(), node.host_pages.size());
  if (pages == 0 || node.tokens.size() != pages * static_cast<std::size_t>(parts.tree.page_size())) {
    return internal_error("node {} has {} pages and {} tokens; wanted {} tokens a page", node.serial, pages,
                          node.tokens.size(), parts.tree.page_size());
  }
  if (node.digests.size() != (parts.with_digests ? pages : 0)) {
    return internal_error("node {} has {} digests for {} pages", node.serial, node.digests.size(), pages);
  }
  if (parts.tree.find_child(*node.parent, node.tokens) != &node) {
    return internal_error("node {} is not what its parent finds under its first page", node.serial);
  }
  return verify_children(node, node.pages.size() == pages, node.host_pages.size() == pages);
}

Status verify_queues(const RadixCacheParts& parts) {
  std::size_t in_pool_queue = 0;
  std::size_t in_host_queue = 0;
  for (const RadixNode& node : parts.tree.nodes()) {
    const bool free = !node.is_root() && node.locks == 0;
    const bool pool = free && node.in_pool() && node.pool_children == 0;
    const bool host = free && node.in_host() && node.host_children == 0;
    if (pool != parts.pool.queue().contains(node) || host != parts.host.queue().contains(node)) {
      return internal_error("node {} is wrong in an eviction order", node.serial);
    }
    in_pool_queue += pool;
    in_host_queue += host;
  }
  if (parts.pool.queue().size() != in_pool_queue || parts.host.queue().size() != in_host_queue) {
    return internal_error("the eviction orders hold {} and {} nodes; wanted {} and {}", parts.pool.queue().size(),
                          parts.host.queue().size(), in_pool_queue, in_host_queue);
  }
  RETURN_IF_ERROR(parts.pool.queue().verify());
  return parts.host.queue().verify();
}

// The pages of one tier: each cached, none named twice, and no others cached.
template <KvMedium medium>
Status verify_pages(const RadixTree& tree, const CacheTier<medium>& tier, int32_t cached) {
  const PagePool& pool = tier.pool();
  std::vector<bool> seen(static_cast<std::size_t>(pool.page_count()), false);
  for (const RadixNode& node : tree.nodes()) {
    for (PageId page : node.pages_in(medium)) {
      if (!pool.contains(page) || pool.state(page) != PageState::kCached) {
        return internal_error("page {} of node {} is not a cached page", page.value, node.serial);
      }
      if (seen[static_cast<std::size_t>(page.value)]) return internal_error("page {} is cached twice", page.value);
      seen[static_cast<std::size_t>(page.value)] = true;
    }
  }
  if (cached != pool.books().cached()) {
    return internal_error("the tree has {} pages; the pool counts {} cached", cached, pool.books().cached());
  }
  return ok_status();
}

}  // namespace

Status verify_radix_cache(const RadixCacheParts& parts) {
  int32_t cached = 0;
  int32_t locked = 0;
  int32_t on_host = 0;
  for (const RadixNode& node : parts.tree.nodes()) {
    RETURN_IF_ERROR(verify_node(parts, node));
    cached += static_cast<int32_t>(node.pages.size());
    on_host += static_cast<int32_t>(node.host_pages.size());
    if (node.locks > 0) locked += static_cast<int32_t>(node.pages.size());
  }
  if (cached != parts.pool.page_count() || locked != parts.locked_pages || on_host != parts.host.page_count()) {
    return internal_error("the tree counts {} pages, {} locked, {} on the host; counted {}, {}, {}",
                          parts.pool.page_count(), parts.locked_pages, parts.host.page_count(), cached, locked,
                          on_host);
  }
  RETURN_IF_ERROR(verify_queues(parts));
  RETURN_IF_ERROR(verify_pages(parts.tree, parts.pool, cached));
  if (parts.host.exists()) return verify_pages(parts.tree, parts.host, on_host).with_prefix("host tier");
  return ok_status();
}

}  // namespace millrace
