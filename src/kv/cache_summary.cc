#include "kv/cache_summary.h"

#include <queue>

namespace millrace {
namespace {

struct Candidate {
  const RadixNode* node = nullptr;
  int32_t parent = -1;
  int32_t depth = 0;
};

struct UsedBefore {
  bool operator()(const Candidate& a, const Candidate& b) const { return a.node->last_access < b.node->last_access; }
};

SummaryNode describe(const Candidate& at, const std::vector<SummaryNode>& nodes) {
  const RadixNode& node = *at.node;
  SummaryNode out{.serial = node.serial,
                  .parent = at.parent,
                  .tokens = static_cast<int32_t>(node.tokens.size()),
                  .hits = node.hits};
  out.locked = node.locks > 0;
  if (at.parent >= 0) {
    const SummaryNode& parent = nodes[static_cast<std::size_t>(at.parent)];
    out.begin = parent.begin + parent.tokens;
    out.on_host = !node.in_pool();
  } else {
    out.weight_version = node.space->weight_version;
    out.has_extra_key = !node.space->extra_key.empty();
  }
  return out;
}

}  // namespace

// A node was last used no earlier than each of its children, so the nodes leave the queue in the order of their use.
CacheSummary summarize(const RadixCache& cache) {
  CacheSummary out{.nodes = {}, .nodes_total = cache.node_count()};
  std::priority_queue<Candidate, std::vector<Candidate>, UsedBefore> next;
  std::size_t visits = 0;
  for (const auto& [space, root] : cache.roots()) {
    if (visits++ < kMaxSummaryVisits) next.push({root, -1, 0});
  }
  while (!next.empty() && out.nodes.size() < kMaxSummaryNodes) {
    const Candidate at = next.top();
    next.pop();
    const auto number = static_cast<int32_t>(out.nodes.size());
    out.nodes.push_back(describe(at, out.nodes));
    if (at.depth >= kMaxSummaryDepth) continue;
    for (const ChildMap::Slot& slot : at.node->children) {
      if (visits++ >= kMaxSummaryVisits) break;
      next.push({slot.child, number, at.depth + 1});
    }
  }
  return out;
}

// A node's lock count is at least the sum of its children's: below one that is not locked, none is.
void mark_locked_pages(const RadixCache& cache, char mark, std::string& map) {
  std::vector<const RadixNode*> open;
  for (const auto& [space, root] : cache.roots()) open.push_back(root);
  while (!open.empty()) {
    const RadixNode* node = open.back();
    open.pop_back();
    for (const PageId page : node->pages) map[static_cast<std::size_t>(page.value)] = mark;
    for (const ChildMap::Slot& slot : node->children) {
      if (slot.child->locks > 0) open.push_back(slot.child);
    }
  }
}

}  // namespace millrace
