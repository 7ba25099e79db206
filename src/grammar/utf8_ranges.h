// A range of code points as sequences of byte ranges, for automata over UTF-8 (the algorithm of Russ Cox, "Regular
// expression matching in the wild", 2010). Thread safety: free functions without state.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "base/function_ref.h"

namespace millrace::grammar {

struct ByteRange {
  uint8_t low = 0;
  uint8_t high = 0;
};

// Calls `visit` for each sequence of 1 to 4 byte ranges; together they are the UTF-8 of [low, high], which holds no
// surrogate.
void for_utf8_ranges(uint32_t low, uint32_t high, FunctionRef<void(std::span<const ByteRange>)> visit);

}  // namespace millrace::grammar
