// RangePool: which ranges of a block of registered memory are free. First fit, 64-byte steps, neighbours merged.
//
// Thread safety: none; its owner locks.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "base/status.h"
#include "tensor/tensor.h"

namespace millrace {

class RangePool {
 public:
  // [begin, begin + bytes), both multiples of kBufferAlignment.
  RangePool(uint64_t begin, uint64_t bytes) { free_[begin] = bytes; }

  static uint64_t rounded(uint64_t bytes) {
    return (bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
  }
  // The offset of a fresh range; nullopt where none is large enough. 0 bytes take a step as well.
  std::optional<uint64_t> take(uint64_t bytes) {
    const uint64_t wanted = bytes == 0 ? kBufferAlignment : rounded(bytes);
    for (auto at = free_.begin(); at != free_.end(); ++at) {
      if (at->second < wanted) continue;
      const uint64_t offset = at->first, left = at->second - wanted;
      free_.erase(at);
      if (left > 0) free_[offset + wanted] = left;
      taken_[offset] = wanted;
      return offset;
    }
    return std::nullopt;
  }
  void give_back(uint64_t offset) {
    const auto taken = taken_.find(offset);
    CHECK(taken != taken_.end());
    uint64_t begin = offset, bytes = taken->second;
    taken_.erase(taken);
    auto next = free_.lower_bound(begin);
    if (next != free_.end() && next->first == begin + bytes) {
      bytes += next->second;
      next = free_.erase(next);
    }
    if (next != free_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == begin) {
        before->second += bytes;
        return;
      }
    }
    free_[begin] = bytes;
  }

 private:
  std::map<uint64_t, uint64_t> free_, taken_;  // offset -> bytes
};

}  // namespace millrace
