// The one clock of waits, limits and ages: it never goes back, and only differences mean something. Any thread.
#pragma once

#include <chrono>
#include <cstdint>

namespace millrace {

template <typename Unit>
int64_t monotonic() {
  return std::chrono::duration_cast<Unit>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline int64_t monotonic_ms() { return monotonic<std::chrono::milliseconds>(); }
inline int64_t monotonic_us() { return monotonic<std::chrono::microseconds>(); }
inline int64_t monotonic_ns() { return monotonic<std::chrono::nanoseconds>(); }

}  // namespace millrace
