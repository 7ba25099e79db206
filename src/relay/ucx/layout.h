// How the bytes of a put are cut into segments, which travel one by one, and where its parts stand in one piece of
// memory. Both sides compute the same from the sizes, which is why neither is sent.
//
// Thread safety: values; free functions without state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace millrace::ucx {

inline constexpr std::size_t kPackBytes = 16u << 10;    // a part of more bytes travels by itself
inline constexpr std::size_t kRunBytes = 64u << 10;     // smaller ones in a row, up to so much together
inline constexpr std::size_t kSegmentBytes = 4u << 20;  // the most at once: what a cancelled get still waits for
inline constexpr std::size_t kAlignment = 64;           // of each part

// Several whole parts in a row, or a piece of one.
struct Segment {
  uint32_t first = 0;
  uint32_t count = 1;
  std::size_t offset = 0;  // in the part, where count is 1
  std::size_t bytes = 0;
};
std::vector<Segment> cut(std::span<const std::size_t> sizes);

struct Layout {
  std::vector<std::size_t> offsets;  // of each part
  std::size_t bytes = 0;             // all together
};
Layout lay_out(std::span<const std::size_t> sizes);

inline constexpr std::size_t kMaxAllocation = std::size_t{1} << 39;  // no machine has it in one piece
// Aligned, with the bytes not set; null where there is no memory.
std::shared_ptr<std::byte> allocate(std::size_t bytes);

}  // namespace millrace::ucx
