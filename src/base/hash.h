// Small hashes that are the same on every machine. Not for security: a chosen input can choose the collisions.
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string_view>

namespace millrace {

// Steele, Lea and Flood's SplitMix64 finalizer: every bit of the input moves every bit of the output.
constexpr uint64_t mix_bits(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// FNV-1a, 64 bits.
constexpr uint64_t hash_name(std::string_view name) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return hash;
}

}  // namespace millrace
