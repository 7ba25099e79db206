#include "kernels/cpu/prefetch_distance.h"

#include "base/cpu_info.h"

namespace millrace::kernels {

// Intel's own prefetcher stops at the end of a page of 4 KiB, so what is asked for lies beyond it: some hundred
// nanoseconds. AMD's follows the reads by itself, and requests for lines half a page away and further hold it back, by
// a third with one thread (measured on Zen 4: docs/performance.md, "On Zen 4").
const PrefetchDistance& prefetch_distance() {
  static const PrefetchDistance distance = cpu_info().vendor == "AuthenticAMD"
                                               ? PrefetchDistance{.plain_bytes = 256, .quantized_bytes = 256}
                                               : PrefetchDistance{.plain_bytes = 4096, .quantized_bytes = 8192};
  return distance;
}

}  // namespace millrace::kernels
