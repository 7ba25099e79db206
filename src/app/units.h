// Numbers as people read them: three digits and the unit that fits. Thread safety: free functions.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>

namespace millrace {

// "596.0 M", "1.24 GB".
inline std::string with_unit(double value, const char* const (&units)[4], double step) {
  int unit = 0;
  for (; value >= step && unit < 3; ++unit) value /= step;
  return fmt::format("{:.{}f} {}", value, value < 10 ? 2 : value < 100 ? 1 : 0, units[unit]);
}
inline std::string count_text(int64_t n) {
  static constexpr const char* kUnits[4] = {"", "K", "M", "G"};
  return with_unit(static_cast<double>(n), kUnits, 1000);
}
inline std::string bytes_text(uint64_t n) {
  static constexpr const char* kUnits[4] = {"bytes", "KB", "MB", "GB"};
  return with_unit(static_cast<double>(n), kUnits, 1000);
}

}  // namespace millrace
