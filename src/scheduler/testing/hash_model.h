// HashModel: a language model in a few lines, whose next token depends on the weight version, on every token so far, on
// every position, on the seed and on everything else that a draw may depend on. It knows nothing of pages, batches and
// chunks: it says what a request's text must be, and FakeRunner must arrive at the same text through the scheduler's
// page tables. For tests only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "grammar/token_grammar.h"
#include "runner/runner.h"

namespace millrace::testing {

// Under any grammar, tokens follow each other up to the next multiple of this: those behind it are forced.
inline constexpr int32_t kForcedRun = 8;

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

  // The one token that may follow under a grammar; -1: all may.
  int32_t only_behind(int32_t token) const { return (token + 1) % kForcedRun == 0 ? -1 : (token + 1) % vocab_size; }

  // The draw: `attended` has gone through the KV of every token, `position` is that of the new token, `generated` are
  // the tokens that penalties look at. A banned token is passed over for the next hash.
  int32_t draw(uint64_t attended, int32_t position, const SamplingSpec& spec,
               std::span<const int32_t> generated) const {
    if (spec.grammar && !generated.empty()) {
      const int32_t only = only_behind(generated.back());
      if (only >= 0 && std::ranges::count(spec.banned, only) == 0) return only;
    }
    uint64_t hash = mix(mix(attended, static_cast<uint32_t>(position)), spec.temperature == 0 ? 0 : spec.seed + 1);
    if (spec.penalizes()) {
      hash = mix(hash, static_cast<uint64_t>((spec.frequency_penalty + 3 * spec.presence_penalty) * 8 + 1000));
      hash = mix(hash, static_cast<uint64_t>(spec.repetition_penalty * 64));
      for (int32_t token : generated) hash = mix(hash, static_cast<uint32_t>(token));
    }
    for (const wire::LogitBias& bias : spec.logit_bias) {
      hash = mix(mix(hash, static_cast<uint32_t>(bias.token)), static_cast<uint64_t>(bias.bias * 8 + 4096));
    }
    for (int tries = 0; tries < 1000; ++tries, hash = mix(hash, 1)) {
      const int32_t token = eos_one_in > 0 && (hash >> 32) % eos_one_in == 0
                                ? eos_token
                                : 1 + static_cast<int32_t>(hash % static_cast<uint64_t>(vocab_size - 1));
      if (std::ranges::count(spec.banned, token) == 0) return token;
    }
    return eos_token;  // everything is banned
  }

  // What a row says of `token` as the one that follows.
  wire::TokenLogprobs logprobs(uint64_t attended, int32_t position, int32_t token, const SamplingSpec& spec) const {
    const auto of = [&](int32_t id) {
      const uint64_t hash = mix(mix(attended, static_cast<uint32_t>(position)), static_cast<uint32_t>(id));
      return -static_cast<double>(hash % 10000) / 500.0;
    };
    wire::TokenLogprobs said;
    said.token = token;
    said.logprob = of(token);
    for (int32_t i = 0; i < spec.top_logprobs; ++i) {
      said.top_ids.push_back((token + i) % vocab_size);
      said.top.push_back(of(said.top_ids.back()));
    }
    for (int32_t id : spec.logprob_token_ids) said.of_ids.push_back(of(id));
    return said;
  }

  // `attended` after a plain list of tokens.
  static uint64_t attend(std::span<const int32_t> tokens, uint64_t weight_version) {
    uint64_t kv = 0;
    uint64_t attended = 0;
    for (int32_t token : tokens) {
      kv = next_kv(kv, token, weight_version);
      attended = mix(attended, kv);
    }
    return attended;
  }

  // The next token of a plain list of tokens.
  int32_t next(const std::vector<int32_t>& tokens, uint64_t weight_version, double temperature, uint64_t seed) const {
    SamplingSpec spec;
    spec.temperature = temperature;
    spec.seed = seed;
    return draw(attend(tokens, weight_version), static_cast<int32_t>(tokens.size()), spec, {});
  }
};

}  // namespace millrace::testing
