#include "relay/session/part_map.h"

#include <algorithm>

namespace millrace::session {

void PartMap::add(std::byte* data, std::size_t size) {
  if (size == 0) return;
  pieces_.push_back({total_, data, size});
  total_ += size;
}

std::size_t PartMap::fill(uint64_t offset, uint64_t size, std::span<iovec> out) const {
  CHECK(offset <= total_ && size <= total_ - offset);
  if (size == 0) return 0;
  auto piece = std::upper_bound(pieces_.begin(), pieces_.end(), offset,
                                [](uint64_t at, const Piece& p) { return at < p.start; });
  --piece;  // the last one that starts at or before the offset
  std::size_t count = 0;
  for (; size > 0 && count < out.size(); ++piece) {
    const uint64_t skip = offset - piece->start;
    const uint64_t take = std::min<uint64_t>(piece->size - skip, size);
    out[count++] = {piece->data + skip, static_cast<std::size_t>(take)};
    offset += take;
    size -= take;
  }
  return count;
}

}  // namespace millrace::session
