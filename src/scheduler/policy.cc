#include "scheduler/policy.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <span>
#include <utility>

#include "base/rng.h"

namespace millrace {
namespace {

constexpr std::array<const char*, 6> kNames = {"fcfs", "lpm", "dfs-weight", "lof", "random", "priority"};

int32_t matched(const Sequence& sequence) { return std::clamp(sequence.look.matched, 0, sequence.known()); }

std::span<const int32_t> prefix(const Sequence& sequence) {
  return std::span(sequence.tokens).first(static_cast<std::size_t>(matched(sequence)));
}

// By extra key and matched prefix: requests of one subtree stand side by side, the shorter prefix before the longer.
bool before_in_tree(const Sequence* a, const Sequence* b) {
  if (a->extra_key != b->extra_key) return a->extra_key < b->extra_key;
  const std::span<const int32_t> x = prefix(*a);
  const std::span<const int32_t> y = prefix(*b);
  const auto [end_x, end_y] = std::ranges::mismatch(x, y);
  if (end_x != x.end() && end_y != y.end()) return *end_x < *end_y;
  if (x.size() != y.size()) return x.size() < y.size();
  return a->arrival < b->arrival;
}

int32_t common_prefix(const Sequence& a, const Sequence& b) {
  if (a.extra_key != b.extra_key) return -1;  // not even the root is common
  const std::span<const int32_t> x = prefix(a);
  return static_cast<int32_t>(std::ranges::mismatch(x, prefix(b)).in1 - x.begin());
}

// The tree of the matched prefixes, as far as it branches: a node for each prefix and each branching point.
struct Node {
  int32_t depth = 0;
  int32_t parent = -1;
  int32_t weight = 0;  // requests below and at it
  uint64_t oldest = UINT64_MAX;
  std::vector<int32_t> children;
  std::vector<Sequence*> own;
};

// Built from the sorted prefixes as a suffix tree is from its sorted suffixes: along the rightmost path.
std::vector<Node> build_tree(const std::vector<Sequence*>& sorted) {
  std::vector<Node> nodes(1);
  nodes[0].depth = -1;  // above the namespaces
  std::vector<int32_t> path = {0};
  const auto child_of = [&](int32_t parent, int32_t depth) {
    nodes.push_back({.depth = depth, .parent = parent});
    nodes[static_cast<std::size_t>(parent)].children.push_back(static_cast<int32_t>(nodes.size()) - 1);
    return static_cast<int32_t>(nodes.size()) - 1;
  };
  const auto depth_of = [&](int32_t node) { return nodes[static_cast<std::size_t>(node)].depth; };
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    const int32_t common = i == 0 ? -1 : common_prefix(*sorted[i - 1], *sorted[i]);
    int32_t last = -1;
    while (depth_of(path.back()) > common) {
      last = path.back();
      path.pop_back();
    }
    if (depth_of(path.back()) < common) {  // a branching point between `last` and its parent
      CHECK(last >= 0);  // the request before this one is at least as deep as what the two have in common
      Node& parent = nodes[static_cast<std::size_t>(path.back())];
      std::erase(parent.children, last);
      const int32_t branch = child_of(path.back(), common);
      nodes[static_cast<std::size_t>(branch)].children.push_back(last);
      nodes[static_cast<std::size_t>(last)].parent = branch;
      path.push_back(branch);
    }
    const int32_t depth = matched(*sorted[i]);
    if (depth_of(path.back()) < depth) path.push_back(child_of(path.back(), depth));
    nodes[static_cast<std::size_t>(path.back())].own.push_back(sorted[i]);
  }
  return nodes;
}

// Every node's weight and oldest request. A parent may have a larger number than its child, so nodes go by depth.
void weigh(std::vector<Node>& nodes) {
  std::vector<std::size_t> deepest_first(nodes.size());
  std::iota(deepest_first.begin(), deepest_first.end(), 0);
  std::ranges::stable_sort(deepest_first,
                           [&](std::size_t a, std::size_t b) { return nodes[a].depth > nodes[b].depth; });
  for (std::size_t i : deepest_first) {
    Node& node = nodes[i];
    node.weight += static_cast<int32_t>(node.own.size());
    for (const Sequence* sequence : node.own) node.oldest = std::min(node.oldest, sequence->arrival);
    if (node.parent < 0) continue;
    Node& parent = nodes[static_cast<std::size_t>(node.parent)];
    parent.weight += node.weight;
    parent.oldest = std::min(parent.oldest, node.oldest);
  }
}

}  // namespace

const char* policy_name(Policy policy) { return kNames[static_cast<std::size_t>(policy)]; }

Result<Policy> parse_policy(std::string_view name) {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (name == kNames[i]) return static_cast<Policy>(i);
  }
  return invalid_argument("the schedule policy is '{}'; wanted fcfs, lpm, dfs-weight, lof, random or priority", name);
}

int64_t policy_rank(Policy policy, const Sequence& sequence, uint64_t seed) {
  switch (policy) {
    case Policy::kLof:
      return -int64_t{sequence.sampling.max_tokens};
    case Policy::kPriority:
      return -int64_t{sequence.priority};
    case Policy::kRandom: {
      const PhiloxBlock words = philox(seed, sequence.arrival);
      return static_cast<int64_t>((uint64_t{words[0]} << 31) ^ words[1]);
    }
    case Policy::kFcfs:
    case Policy::kLpm:
    case Policy::kDfsWeight:
      return 0;
  }
  return 0;
}

void order_by_match(std::vector<Sequence*>& waiting) {
  std::ranges::sort(waiting, [](const Sequence* a, const Sequence* b) {
    if (matched(*a) != matched(*b)) return matched(*a) > matched(*b);
    return a->arrival < b->arrival;
  });
}

void order_depth_first(std::vector<Sequence*>& waiting) {
  std::ranges::sort(waiting, before_in_tree);
  std::vector<Node> nodes = build_tree(waiting);
  weigh(nodes);
  waiting.clear();
  // Children before their parent's own requests, the heaviest child first. An explicit stack: the depth of the tree is
  // the clients' to choose. A node is seen twice, first to push its children, then to give its own.
  std::vector<std::pair<int32_t, bool>> stack = {{0, false}};
  while (!stack.empty()) {
    const auto [index, children_done] = stack.back();
    Node& node = nodes[static_cast<std::size_t>(index)];
    if (children_done) {
      stack.pop_back();
      std::ranges::sort(node.own, {}, &Sequence::arrival);
      waiting.insert(waiting.end(), node.own.begin(), node.own.end());
      continue;
    }
    stack.back().second = true;
    std::ranges::sort(node.children, [&](int32_t a, int32_t b) {  // the heaviest last, so that it is on top
      const Node& x = nodes[static_cast<std::size_t>(a)];
      const Node& y = nodes[static_cast<std::size_t>(b)];
      return x.weight != y.weight ? x.weight < y.weight : x.oldest > y.oldest;
    });
    for (int32_t child : node.children) stack.emplace_back(child, false);
  }
}

}  // namespace millrace
