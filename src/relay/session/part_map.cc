#include "relay/session/part_map.h"

#include <algorithm>

namespace millrace::session {

void PartMap::add(std::byte* data, std::size_t size) {
  // So each run begins at another offset, and the search in fill() has one answer.
  if (size == 0) return;
  runs_.push_back({total_, data, size});
  total_ += size;
}

std::size_t PartMap::fill(uint64_t offset, uint64_t size, std::span<iovec> out) const {
  // By subtraction: offset + size may wrap.
  CHECK(offset <= total_ && size <= total_ - offset);
  if (size == 0) return 0;
  auto run =
      std::upper_bound(runs_.begin(), runs_.end(), offset, [](uint64_t at, const Run& p) { return at < p.start; });
  --run;  // the last one that starts at or before the offset
  std::size_t count = 0;
  for (; size > 0 && count < out.size(); ++run) {
    const uint64_t skip = offset - run->start;
    const uint64_t take = std::min<uint64_t>(run->size - skip, size);
    out[count++] = {run->data + skip, static_cast<std::size_t>(take)};
    offset += take;
    size -= take;
  }
  return count;
}

}  // namespace millrace::session
