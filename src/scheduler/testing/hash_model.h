// HashModel: a language model in a few lines, whose next token depends on the weight version, on every token so far, on
// every position and on the seed. It knows nothing of pages, batches and chunks: it says what a request's text must be,
// and FakeRunner must arrive at the same text through the scheduler's page tables. For tests only.
#pragma once

#include <cstdint>
#include <vector>

namespace millrace::testing {

struct HashModel {
  int32_t vocab_size = 1000;
  int32_t eos_token = 0;
  uint32_t eos_one_in = 40;  // roughly one token in so many is the end token; 0 = never

  // The finalizer of SplitMix64 over a running value.
  static uint64_t mix(uint64_t state, uint64_t value) {
    uint64_t z = state + 0x9e3779b97f4a7c15ull + value * 0xd1342543de82ef95ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }

  // What stands in the KV slot of one token: a value that depends on the weights and on all tokens up to it.
  static uint64_t next_kv(uint64_t previous_kv, int32_t token, uint64_t weight_version) {
    return mix(mix(previous_kv, weight_version), static_cast<uint32_t>(token));
  }

  // The draw: `attended` has gone through the KV of every token, `position` is that of the new token.
  int32_t draw(uint64_t attended, int32_t position, double temperature, uint64_t seed) const {
    const uint64_t hash = mix(mix(attended, static_cast<uint32_t>(position)), temperature == 0 ? 0 : seed + 1);
    if (eos_one_in > 0 && (hash >> 32) % eos_one_in == 0) return eos_token;
    return 1 + static_cast<int32_t>(hash % static_cast<uint64_t>(vocab_size - 1));
  }

  // The next token of a plain list of tokens.
  int32_t next(const std::vector<int32_t>& tokens, uint64_t weight_version, double temperature, uint64_t seed) const {
    uint64_t kv = 0;
    uint64_t attended = 0;
    for (int32_t token : tokens) {
      kv = next_kv(kv, token, weight_version);
      attended = mix(attended, kv);
    }
    return draw(attended, static_cast<int32_t>(tokens.size()), temperature, seed);
  }
};

}  // namespace millrace::testing
