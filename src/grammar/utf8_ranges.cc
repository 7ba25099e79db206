#include "grammar/utf8_ranges.h"

#include <string>

#include "base/status.h"
#include "grammar/expr.h"

namespace millrace::grammar {

void for_utf8_ranges(uint32_t low, uint32_t high, FunctionRef<void(std::span<const ByteRange>)> visit) {
  CHECK(low <= high && high <= kMaxCodePoint);
  // First where the number of bytes changes, ...
  for (const uint32_t last : {0x7Fu, 0x7FFu, 0xFFFFu}) {
    if (low <= last && high > last) {
      for_utf8_ranges(low, last, visit);
      return for_utf8_ranges(last + 1, high, visit);
    }
  }
  // ... then where a continuation byte does not cover all of its 64 values while one before it has several.
  const int bytes = low < 0x80 ? 1 : low < 0x800 ? 2 : low < 0x10000 ? 3 : 4;
  for (int i = 1; i < bytes; ++i) {
    const uint32_t tail = (1u << (6 * i)) - 1;
    if ((low & ~tail) == (high & ~tail)) continue;
    if ((low & tail) != 0) {
      for_utf8_ranges(low, low | tail, visit);
      return for_utf8_ranges((low | tail) + 1, high, visit);
    }
    if ((high & tail) != tail) {
      for_utf8_ranges(low, (high & ~tail) - 1, visit);
      return for_utf8_ranges(high & ~tail, high, visit);
    }
  }
  const std::string first = utf8(low), last = utf8(high);
  CHECK(first.size() == last.size());
  std::array<ByteRange, 4> sequence;
  for (std::size_t i = 0; i < first.size(); ++i) {
    sequence[i] = {static_cast<uint8_t>(first[i]), static_cast<uint8_t>(last[i])};
  }
  visit(std::span(sequence).first(first.size()));
}

}  // namespace millrace::grammar
