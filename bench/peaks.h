// What the processor can do at best, for the figures of kernels_bench to stand beside: multiply-adds from registers and
// reads from memory. Thread safety: each call has its own state.
#pragma once

#include <benchmark/benchmark.h>

namespace millrace::bench {

// Registers peak/fma256, peak/fma512, peak/vnni512 (int8), peak/bf16_512 and peak/tiles_bf16 where the processor has
// them (GFLOP/s), and peak/read with one and two threads (GB/s over 512 MiB of huge pages).
void register_peaks();

}  // namespace millrace::bench
