#include "relay/testing/patterns.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/rng.h"

namespace millrace::relay_testing {
namespace {

uint64_t mix(uint64_t x) {
  x ^= x >> 30;
  x *= 0xBF58476D1CE4E5B9ull;
  x ^= x >> 27;
  x *= 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

// Eight bytes of the pattern at a time.
uint64_t word(uint64_t seed, std::size_t part, std::size_t index) {
  return mix(seed * 0x9E3779B97F4A7C15ull + part * 0xD1B54A32D192ED03ull + index);
}

}  // namespace

SharedBytes make_part(uint64_t seed, std::size_t part, std::size_t size) {
  Buffer buffer(size);
  for (std::size_t at = 0; at < size; at += 8) {
    const uint64_t w = word(seed, part, at / 8);
    std::memcpy(buffer.data() + at, &w, std::min<std::size_t>(8, size - at));
  }
  return SharedBytes(std::move(buffer));
}

std::vector<SharedBytes> make_parts(uint64_t seed, const std::vector<std::size_t>& sizes) {
  std::vector<SharedBytes> parts;
  parts.reserve(sizes.size());
  for (std::size_t i = 0; i < sizes.size(); ++i) parts.push_back(make_part(seed, i, sizes[i]));
  return parts;
}

std::string differs(uint64_t seed, const std::vector<std::size_t>& sizes, const std::vector<SharedBytes>& parts) {
  if (parts.size() != sizes.size()) return fmt::format("{} parts; wanted {}", parts.size(), sizes.size());
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (parts[i].size_bytes() != sizes[i]) {
      return fmt::format("part {} has {} bytes; wanted {}", i, parts[i].size_bytes(), sizes[i]);
    }
    for (std::size_t at = 0; at < sizes[i]; at += 8) {
      const uint64_t w = word(seed, i, at / 8);
      if (std::memcmp(parts[i].data() + at, &w, std::min<std::size_t>(8, sizes[i] - at)) != 0) {
        return fmt::format("part {} of {} bytes differs near byte {}", i, sizes[i], at);
      }
    }
  }
  return "";
}

std::vector<std::size_t> random_sizes(uint64_t seed, std::size_t max_parts, std::size_t max_bytes) {
  // Sizes are spread evenly over their logarithm; one in eight is a power of two or next to one, one in sixteen empty.
  const PhiloxBlock draw = philox(seed, 0, 1);
  const double count = std::exp(uniform_open(draw[0]) * std::log(static_cast<double>(max_parts) + 1));
  std::vector<std::size_t> sizes(std::clamp<std::size_t>(static_cast<std::size_t>(count), 1, max_parts));
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const PhiloxBlock d = philox(seed, i + 1, 1);
    const double log_size = uniform_open(d[0]) * std::log(static_cast<double>(max_bytes) + 1);
    std::size_t size = static_cast<std::size_t>(std::exp(log_size));
    if (d[1] % 8 == 0) size = (std::size_t{1} << static_cast<int>(std::log2(static_cast<double>(size) + 1))) + d[2] % 3;
    if (d[1] % 16 == 1) size = 0;
    sizes[i] = std::min(size, max_bytes);
  }
  return sizes;
}

}  // namespace millrace::relay_testing
