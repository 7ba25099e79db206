// Hashes for the tokenizer's tables. Not for anything that an attacker may choose the keys of AND that degrades badly:
// the keys here come from the model's files; user text only probes.
//
// Thread safety: free functions without state.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>

namespace millrace {

inline uint64_t hash_mix(uint64_t a, uint64_t b) {
  const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

// Multiply-and-fold over 8-byte words, the scheme of wyhash (public domain).
inline uint64_t hash_bytes(std::string_view text) {
  constexpr uint64_t kA = 0xA0761D6478BD642FULL;
  constexpr uint64_t kB = 0xE7037ED1A0B428DBULL;
  uint64_t seed = hash_mix(kA ^ text.size(), kB);
  const char* p = text.data();
  size_t left = text.size();
  while (left > 8) {
    uint64_t word = 0;
    std::memcpy(&word, p, 8);
    seed = hash_mix(seed ^ word, kB);
    p += 8;
    left -= 8;
  }
  uint64_t tail = 0;
  std::memcpy(&tail, p, left);
  return hash_mix(seed ^ tail, kA ^ kB);
}

}  // namespace millrace
