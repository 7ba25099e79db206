// Draws a radix tree in ASCII, so that a test can show the tree it expects. For tests only.
//
//   key "" weights 0            one line for each root, in the order of namespaces
//     [1 2 | 3 4] p0 p1          one line for each node: its pages of tokens, then its page numbers;
//       [5 6] p2 *2              *n: locked n times
//       [7 8] p3                 siblings in the order of their tokens
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "kv/radix_cache.h"

namespace millrace::testing {

inline std::string draw_node(const RadixNode& node, int32_t page_size) {
  std::string line = "[";
  for (std::size_t i = 0; i < node.tokens.size(); ++i) {
    if (i > 0) line += i % static_cast<std::size_t>(page_size) == 0 ? " | " : " ";
    line += std::to_string(node.tokens[i]);
  }
  line += "]";
  for (PageId page : node.pages) line += " p" + std::to_string(page.value);
  if (node.locks > 0) line += " *" + std::to_string(node.locks);
  return line;
}

inline std::string draw_tree(const RadixCache& cache) {
  struct Line {
    const RadixNode* node;
    std::size_t depth;
  };
  std::string picture;
  for (const auto& [space, root] : cache.roots()) {
    picture += "key \"" + space.extra_key + "\" weights " + std::to_string(space.weight_version) + "\n";
    std::vector<Line> stack = {{root, 0}};
    while (!stack.empty()) {
      const Line line = stack.back();
      stack.pop_back();
      if (line.depth > 0) picture += std::string(2 * line.depth, ' ') + draw_node(*line.node, cache.page_size()) + "\n";
      std::vector<const RadixNode*> children;
      for (const auto& [hash, child] : line.node->children) children.push_back(child);
      // The stack turns the order round.
      std::ranges::sort(children, [](const RadixNode* a, const RadixNode* b) { return a->tokens > b->tokens; });
      for (const RadixNode* child : children) stack.push_back({child, line.depth + 1});
    }
  }
  return picture;
}

}  // namespace millrace::testing
