// Extents: which ranges of a block of memory are free. First fit, in steps of kBufferAlignment, neighbours merged.
//
// Owner: the owner of the block. Thread safety: none; the owner locks. Invariant: taken and free ranges cover the
// block, and no two free ranges touch.
#pragma once

#include <cstdint>
#include <iterator>
#include <map>
#include <optional>

#include "relay/session/layout.h"

namespace millrace::session {

class Extents {
 public:
  // [begin, begin + bytes), both multiples of kBufferAlignment.
  Extents(uint64_t begin, uint64_t bytes) : bytes_(bytes) {
    CHECK(begin % kBufferAlignment == 0 && bytes % kBufferAlignment == 0);
    free_[begin] = bytes;
  }

  // The offset of a fresh range; nullopt where none is large enough. 0 bytes take a step as well.
  std::optional<uint64_t> take(uint64_t bytes) {
    const uint64_t wanted = bytes == 0 ? kBufferAlignment : aligned(bytes);
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
  void release(uint64_t offset) {
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
  bool unused() const { return taken_.empty(); }
  uint64_t bytes() const { return bytes_; }

 private:
  uint64_t bytes_;
  std::map<uint64_t, uint64_t> free_, taken_;  // offset -> bytes
};

}  // namespace millrace::session
