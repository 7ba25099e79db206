#include "relay/ucx/layout.h"

#include <algorithm>
#include <cstdlib>

namespace millrace::ucx {
namespace {

constexpr std::size_t align(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

std::vector<Segment> cut(std::span<const std::size_t> sizes) {
  std::vector<Segment> segments;
  bool open = false;  // whether the last one takes more small parts
  for (uint32_t part = 0; part < sizes.size(); ++part) {
    const std::size_t size = sizes[part];
    if (size > kPackBytes) {
      for (std::size_t offset = 0; offset < size; offset += kSegmentBytes) {
        segments.push_back({part, 1, offset, std::min(kSegmentBytes, size - offset)});
      }
      open = false;
    } else if (open && segments.back().bytes + size <= kRunBytes) {
      ++segments.back().count;
      segments.back().bytes += size;
    } else {
      segments.push_back({part, 1, 0, size});
      open = true;
    }
  }
  return segments;
}

Layout lay_out(std::span<const std::size_t> sizes) {
  Layout layout;
  layout.offsets.reserve(sizes.size());
  for (const std::size_t size : sizes) {
    layout.offsets.push_back(layout.bytes);
    layout.bytes += align(size);
  }
  return layout;
}

std::shared_ptr<std::byte> allocate(std::size_t bytes) {
  if (bytes > kMaxAllocation) return nullptr;
  auto* memory = static_cast<std::byte*>(std::aligned_alloc(kAlignment, std::max(align(bytes), kAlignment)));
  return {memory, [](std::byte* p) { std::free(p); }};
}

}  // namespace millrace::ucx
