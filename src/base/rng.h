// Philox 4x32-10, a counter-based random generator: the numbers are a pure function of (seed, counter), so the draw for
// one token depends on nothing but its request's seed and its position. No state, nothing to lock or to save.
//
// Source: Salmon, Moraes, Dror, Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011. Checked against the
// known-answer vectors of the authors' Random123 library (rng_test.cc).
//
// Thread safety: pure functions.
#pragma once

#include <array>
#include <cstdint>

namespace millrace {

using PhiloxBlock = std::array<uint32_t, 4>;

// One block of the raw generator: ten rounds over a 128-bit counter with a 64-bit key.
constexpr PhiloxBlock philox4x32_10(PhiloxBlock counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9u;  // the golden ratio, as in the paper
    key[1] += 0xBB67AE85u;  // sqrt(3) - 1
  }
  return counter;
}

// Four words for (seed, counter). `stream` separates independent uses of one seed (sampling, dropout of a test, ...).
constexpr PhiloxBlock philox(uint64_t seed, uint64_t counter, uint64_t stream = 0) {
  return philox4x32_10({static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32),
                        static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)},
                       {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
}

// Uniform in the open interval (0, 1): (word + 1/2) / 2^32, exact in double, never 0 and never 1, so log() is safe.
constexpr double uniform_open(uint32_t word) { return (static_cast<double>(word) + 0.5) * 0x1p-32; }

// The same from 53 bits of two words: (bits + 1/2) / 2^53 would round up to 1, so 52 bits are used.
constexpr double uniform_open(uint32_t high, uint32_t low) {
  const uint64_t bits = ((uint64_t{high} << 32) | low) >> 12;
  return (static_cast<double>(bits) + 0.5) * 0x1p-52;
}

// Uniform in (0, 1) for (seed, counter): the first word of the block.
constexpr double philox_uniform(uint64_t seed, uint64_t counter, uint64_t stream = 0) {
  return uniform_open(philox(seed, counter, stream)[0]);
}

}  // namespace millrace
