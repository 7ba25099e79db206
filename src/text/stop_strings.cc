#include "text/stop_strings.h"

namespace millrace {

Result<StopStrings> StopStrings::create(const std::vector<std::string>& stops, bool include_stop) {
  if (stops.size() > kMaxStopStrings) {
    return invalid_argument("stop has {} strings; wanted at most {}", stops.size(), kMaxStopStrings);
  }
  StopStrings result;
  result.include_stop_ = include_stop;
  for (const std::string& stop : stops) {
    if (stop.empty()) return invalid_argument("a stop string is empty; wanted at least one byte");
    if (stop.size() > kMaxStopStringBytes) {
      return invalid_argument("a stop string has {} bytes; wanted at most {}", stop.size(), kMaxStopStringBytes);
    }
    result.insert(stop, static_cast<uint8_t>(result.sizes_.size()));
    result.sizes_.push_back(static_cast<uint16_t>(stop.size()));
  }
  result.nodes_.shrink_to_fit();
  result.link();
  return result;
}

void StopStrings::insert(std::string_view stop, uint8_t index) {
  CHECK(!stop.empty() && index == sizes_.size());
  NodeIndex node = 0;
  for (const char c : stop) {
    const auto byte = static_cast<uint8_t>(c);
    NodeIndex next = child(node, byte);
    if (next == 0) {
      next = static_cast<NodeIndex>(nodes_.size());
      Node& parent = nodes_[node];
      nodes_.push_back(
          {.next_sibling = parent.first_child, .depth = static_cast<uint16_t>(nodes_[node].depth + 1), .byte = byte});
      nodes_[node].first_child = next;
    }
    node = next;
  }
  if (nodes_[node].stop == kNoStop) nodes_[node].stop = index;
}

// The failure links, breadth first: Aho and Corasick, "Efficient string matching" (1975), algorithm 3.
void StopStrings::link() {
  std::vector<NodeIndex> queue{0};
  queue.reserve(nodes_.size());
  for (size_t at = 0; at < queue.size(); ++at) {
    const NodeIndex node = queue[at];
    for (NodeIndex next = nodes_[node].first_child; next != 0; next = nodes_[next].next_sibling) {
      Node& below = nodes_[next];
      if (node != 0) below.fail = step(nodes_[node].fail, below.byte);
      if (below.stop == kNoStop) below.stop = nodes_[below.fail].stop;
      queue.push_back(next);
    }
  }
  CHECK(queue.size() == nodes_.size());  // a tree: each node has one parent
}

StopStrings::NodeIndex StopStrings::child(NodeIndex node, uint8_t byte) const {
  NodeIndex next = nodes_[node].first_child;
  while (next != 0 && nodes_[next].byte != byte) next = nodes_[next].next_sibling;
  return next;
}

StopStrings::NodeIndex StopStrings::step(NodeIndex node, uint8_t byte) const {
  for (;;) {
    const NodeIndex next = child(node, byte);
    if (next != 0 || node == 0) return next;
    node = nodes_[node].fail;
  }
}

StopStrings::Output StopStrings::push(std::string_view text) {
  Output out;
  if (matched_) return out;
  const size_t held_before = held_.size();
  held_ += text;
  for (size_t i = held_before; i < held_.size(); ++i) {
    node_ = step(node_, static_cast<uint8_t>(held_[i]));
    const uint8_t stop = nodes_[node_].stop;
    if (stop == kNoStop) continue;
    matched_ = true;
    CHECK(sizes_[stop] <= i + 1);  // the bytes of a stop string are held until it is complete
    out.matched = true;
    out.matched_index = stop;
    held_.resize(i + 1 - (include_stop_ ? 0 : sizes_[stop]));
    out.emit = std::move(held_);
    held_.clear();
    return out;
  }
  const size_t open = nodes_[node_].depth;
  CHECK(open <= held_.size());
  out.emit = held_.substr(0, held_.size() - open);
  held_.erase(0, held_.size() - open);
  return out;
}

std::string StopStrings::finish() {
  std::string rest = std::move(held_);
  held_.clear();
  node_ = 0;
  return rest;
}

}  // namespace millrace
