// Gaps: which bytes of a range have not arrived yet. Frames may fill it in any order; what would overlap bytes that are
// there, or lies outside, does not fit.
//
// Owner: a range in flight. Thread safety: one thread's.
#pragma once

#include <cstdint>
#include <iterator>
#include <map>

#include "base/status.h"

namespace millrace::session {

class Gaps {
 public:
  Gaps(uint64_t begin, uint64_t end) {
    if (begin < end) gaps_[begin] = end;
  }
  bool none() const { return gaps_.empty(); }
  bool fits(uint64_t offset, uint64_t size) const {
    const auto gap = gap_of(offset);
    return gap != gaps_.end() && size > 0 && size <= gap->second - offset;
  }
  // It must fit.
  void fill(uint64_t offset, uint64_t size) {
    CHECK(fits(offset, size));
    const auto gap = gap_of(offset);
    const uint64_t begin = gap->first, end = gap->second;
    gaps_.erase(gap);
    if (begin < offset) gaps_[begin] = offset;
    if (offset + size < end) gaps_[offset + size] = end;
  }
  const std::map<uint64_t, uint64_t>& all() const { return gaps_; }  // begin -> end

 private:
  // The gap that has this byte.
  std::map<uint64_t, uint64_t>::const_iterator gap_of(uint64_t offset) const {
    const auto after = gaps_.upper_bound(offset);
    if (after == gaps_.begin()) return gaps_.end();
    const auto gap = std::prev(after);
    return offset < gap->second ? gap : gaps_.end();
  }

  std::map<uint64_t, uint64_t> gaps_;
};

}  // namespace millrace::session
