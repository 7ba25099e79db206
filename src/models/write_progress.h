// How far a model is that is written to files, and whether it shall go on. Thread safety: that of the writer, which
// calls it on its own thread.
#pragma once

#include <cstdint>
#include <functional>

namespace millrace {

// Called with (bytes done, bytes in all); false ends the writing with kCancelled.
using WriteProgress = std::function<bool(uint64_t bytes_done, uint64_t bytes_total)>;

}  // namespace millrace
