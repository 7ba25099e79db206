#include "kv/eviction_queue.h"

namespace millrace {

namespace {

constexpr uint64_t kSlruProtectedHits = 2;

}  // namespace

EvictionKey eviction_key(EvictionStrategy strategy, const RadixNode& node) {
  const auto hits = static_cast<uint64_t>(node.hits);
  switch (strategy) {
    case EvictionStrategy::kLru:
      return {0, node.last_access, node.serial};
    case EvictionStrategy::kLfu:
      return {hits, node.last_access, node.serial};
    case EvictionStrategy::kFifo:
      return {0, node.created, node.serial};
    case EvictionStrategy::kMru:
      return {0, ~node.last_access, node.serial};
    case EvictionStrategy::kFilo:
      return {0, ~node.created, node.serial};
    case EvictionStrategy::kPriority:
      return {static_cast<uint64_t>(int64_t{node.priority} - INT32_MIN), node.last_access, node.serial};
    case EvictionStrategy::kSlru:
      return {hits >= kSlruProtectedHits, node.last_access, node.serial};
  }
  CHECK(false);
  return {};
}

}  // namespace millrace
