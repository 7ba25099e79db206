#include "kernels/cpu/read_ahead.h"

#include "base/cpu_info.h"

namespace millrace::kernels {

// Intel's own prefetcher stops at the end of a page of 4 KiB, so what is asked for lies beyond it: some hundred
// nanoseconds. AMD's follows the reads by itself, and requests for lines half a page away and further hold it back, by
// a third with one thread (measured on Zen 4: docs/performance.md, "On Zen 4").
const ReadAhead& read_ahead() {
  static const ReadAhead ahead = cpu_info().vendor == "AuthenticAMD"
                                     ? ReadAhead{.plain_bytes = 256, .quantized_bytes = 256}
                                     : ReadAhead{.plain_bytes = 4096, .quantized_bytes = 8192};
  return ahead;
}

}  // namespace millrace::kernels
