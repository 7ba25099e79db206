// Layout: the parts of a put, laid end to end as one run of bytes, cut into frames; and their offsets in a block of
// memory, where each part begins at a multiple of kBufferAlignment. Writer and reader compute the same from the sizes.
//
// A frame holds several small parts or a range of one large part: a part that stands alone shares its frames with no
// other part, so that a transport can send and receive it where it lies. Every other frame may need a contiguous copy,
// which packed_bytes bounds.
//
// Owner: a put or a get. Thread safety: a value; const functions from any thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "tensor/tensor.h"

namespace millrace::session {

struct FrameRules {
  std::size_t frame_bytes = SIZE_MAX;   // of one frame, at most
  std::size_t packed_bytes = SIZE_MAX;  // of one with several parts, at most
  std::size_t alone_bytes = SIZE_MAX;   // a part of more bytes stands alone
};

inline constexpr std::size_t aligned(std::size_t bytes) {
  return (bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
}

class Layout {
 public:
  struct Slice {
    std::size_t part = 0;
    std::size_t offset = 0;  // in the part
    std::size_t size = 0;
  };

  Layout() = default;
  Layout(std::span<const std::size_t> sizes, const FrameRules& rules) : rules_(rules) {
    starts_.reserve(sizes.size() + 1);
    block_offsets_.reserve(sizes.size());
    for (const std::size_t size : sizes) {
      starts_.push_back(starts_.back() + size);
      block_offsets_.push_back(block_bytes_);
      block_bytes_ += aligned(size);
    }
  }
  // Only these parts may stand alone.
  void set_alone(std::vector<bool> candidates) {
    CHECK(candidates.empty() || candidates.size() == parts());
    candidates_ = std::move(candidates);
  }
  const std::vector<bool>& candidates() const { return candidates_; }

  std::size_t total() const { return starts_.back(); }
  std::size_t parts() const { return block_offsets_.size(); }
  std::size_t size(std::size_t part) const { return starts_[part + 1] - starts_[part]; }
  std::size_t block_offset(std::size_t part) const { return block_offsets_[part]; }  // in a block
  std::size_t block_bytes() const { return block_bytes_; }
  bool alone(std::size_t part) const {
    return size(part) > rules_.alone_bytes && (candidates_.empty() || candidates_[part]);
  }

  // Where the frame that begins at `at` of the run ends. Of no bytes: 0.
  std::size_t frame_end(std::size_t at) const {
    if (total() == 0) return 0;
    CHECK(at < total());
    std::size_t part = part_at(at);
    if (alone(part)) return std::min(at + std::min(rules_.frame_bytes, total() - at), starts_[part + 1]);
    const std::size_t most = at + std::min({rules_.frame_bytes, rules_.packed_bytes, total() - at});
    while (starts_[part + 1] < most) {
      if (alone(++part)) return starts_[part];
    }
    return most;
  }

  // What [at, end) of the run is made of, in order; no slice is empty.
  std::vector<Slice> slices(std::size_t at, std::size_t end) const {
    std::vector<Slice> found;
    CHECK(end <= total());
    if (at >= end) return found;
    for (std::size_t part = part_at(at); at < end; ++part) {
      const std::size_t stop = std::min(end, starts_[part + 1]);
      if (stop > at) found.push_back({part, at - starts_[part], stop - at});
      at = std::max(at, stop);
    }
    return found;
  }

 private:
  std::size_t part_at(std::size_t at) const {
    return static_cast<std::size_t>(std::upper_bound(starts_.begin(), starts_.end(), at) - starts_.begin()) - 1;
  }

  FrameRules rules_;
  std::vector<std::size_t> starts_ = {0};
  std::vector<std::size_t> block_offsets_;
  std::vector<bool> candidates_;
  std::size_t block_bytes_ = 0;
};

}  // namespace millrace::session
