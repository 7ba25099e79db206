// RadixTree: the nodes of the radix tree and their links, by tokens. It finds, adds, splits and removes nodes; which
// pages they hold, their users and when they are evicted are decided outside.
//
// A radix tree for each namespace (extra key, weight version). An edge is a run of whole pages: page_size tokens each.
// Children are found by a keyed hash of their first page and then compared token by token: two prompts share a page
// only if their tokens are equal, whatever the hash is.
//
// Invariants: no two children of a node begin with the same page of tokens; a root has a child, or gets one before the
// call into the cache that added it returns. A pointer to a node is good until the node is removed.
//
// Owner: one RadixCache. Thread safety: none.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <span>

#include "kv/radix_node.h"

namespace millrace {

class RadixTree {
 public:
  using BlockHash = uint64_t (*)(std::span<const int32_t> block);

  RadixTree(int32_t page_size, BlockHash hash) : page_size_(page_size), hash_(hash) {}
  RadixTree(const RadixTree&) = delete;
  RadixTree& operator=(const RadixTree&) = delete;

  // ---- Finding ----
  RadixNode* find_root(const CacheNamespace& space) const;  // nullptr: there is none
  // The child that begins with the first page of `tokens`, which has at least one page; nullptr: there is none.
  RadixNode* find_child(const RadixNode& node, std::span<const int32_t> tokens) const;
  // Whole pages that the node's tokens and `tokens` begin with in common.
  int32_t common_pages(const RadixNode& node, std::span<const int32_t> tokens) const;
  int32_t length(const RadixNode& node) const {
    return static_cast<int32_t>(node.tokens.size()) / page_size_;
  }  // pages

  // ---- Changing; a new node is created, and was last used, at `tick` ----
  RadixNode* add_root(const CacheNamespace& space, uint64_t tick);  // of a namespace that has none
  // A child with tokens and without pages: the caller adds them.
  RadixNode* add_child(RadixNode* parent, std::span<const int32_t> tokens, uint64_t tick);
  // Cuts the first `count` pages off `node` into a new node above it, and returns that one. `node` stays the lower end,
  // so that whatever locked it still holds the complete path. The new node inherits use and creation.
  RadixNode* split(RadixNode* node, int32_t count);
  // After pages were dropped: the node ends where the longer of its runs ends, or is removed with its last page, and an
  // empty root with it.
  void trim(RadixNode* node);

  const std::list<RadixNode>& nodes() const { return nodes_; }  // roots included
  const std::map<CacheNamespace, RadixNode*>& roots() const { return roots_; }
  int32_t page_size() const { return page_size_; }

 private:
  std::span<const int32_t> first_page(const RadixNode& node) const { return page_tokens(node, 0, page_size_); }
  RadixNode& add_node(RadixNode* parent, uint64_t tick);
  void remove(RadixNode* leaf);

  const int32_t page_size_;
  const BlockHash hash_;
  std::list<RadixNode> nodes_;  // owns every node: tearing down needs no recursion
  std::map<CacheNamespace, RadixNode*> roots_;
  uint64_t next_serial_ = 0;
};

}  // namespace millrace
