// StopStrings: finds the request's stop strings in its output while it streams, and holds back what may become one.
//
// Owned by one request, used by one thread at a time. Works on bytes; the text pushed may be cut anywhere.
// One Aho-Corasick automaton over all stop strings: a byte costs the same however many there are (amortized), and
// nothing is looked at twice. Built once; kMaxStopStrings * kMaxStopStringBytes + 1 nodes of ten bytes at most.
// Invariants: no byte of a matched stop string is ever emitted (unless include_stop), nor any byte after it; at most
// kMaxStopStringBytes - 1 bytes are held; the output does not depend on how the text is cut into pushes.
// Of several matches the one that ends first wins; of those that end together, the longest; of equal ones, the first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "wire/limits.h"

namespace millrace {

using wire::kMaxStopStringBytes;
using wire::kMaxStopStrings;

class StopStrings {
 public:
  struct Output {
    std::string emit;          // safe to send now
    bool matched = false;      // a stop string is complete; later pushes emit nothing
    size_t matched_index = 0;  // which one, in the order given
  };

  // Errors: kInvalidArgument for too many, an empty, or a too long stop string. No stop strings: push() returns its
  // input.
  static Result<StopStrings> create(const std::vector<std::string>& stops, bool include_stop);

  Output push(std::string_view text);
  // What is still held; empty after a match. Call once, at the end of the output.
  std::string finish();
  bool matched() const { return matched_; }
  std::size_t nodes() const { return nodes_.size(); }  // for tests of the memory's bound

 private:
  using NodeIndex = uint16_t;
  static_assert(kMaxStopStrings * kMaxStopStringBytes < UINT16_MAX);
  static_assert(kMaxStopStrings < UINT8_MAX);
  static constexpr uint8_t kNoStop = UINT8_MAX;

  // A node is the prefix of a stop string that leads to it from the root, node 0. Children are a list: a node has as
  // many as there are stop strings at most.
  struct Node {
    NodeIndex first_child = 0;
    NodeIndex next_sibling = 0;
    NodeIndex fail = 0;      // the longest proper suffix that is a node too
    uint16_t depth = 0;      // length in bytes
    uint8_t byte = 0;        // the last one
    uint8_t stop = kNoStop;  // the longest stop string that it ends with
  };

  StopStrings() = default;
  void insert(std::string_view stop, uint8_t index);
  void link();
  NodeIndex child(NodeIndex node, uint8_t byte) const;  // 0: none
  NodeIndex step(NodeIndex node, uint8_t byte) const;

  std::vector<Node> nodes_ = std::vector<Node>(1);
  std::vector<uint16_t> sizes_;  // of the stop strings
  std::string held_;
  NodeIndex node_ = 0;  // the longest prefix of a stop string that the text so far ends with
  bool include_stop_ = false;
  bool matched_ = false;
};

}  // namespace millrace
