// How far ahead of their use a pass over weights prefetches them, so that few rows do not wait for the memory. Results
// do not depend on it. Thread safety: prefetch_distance() may be called from any thread.
#pragma once

#include <cstdint>

namespace millrace::kernels {

struct PrefetchDistance {
  int64_t plain_bytes;      // linear.inl
  int64_t quantized_bytes;  // panel_tiles.inl
};

// Of this processor.
const PrefetchDistance& prefetch_distance();

}  // namespace millrace::kernels
