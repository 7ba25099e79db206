// Which of a stage's replicas serves a request: the same answer everywhere, without a word between those who ask.
//
// Rendezvous hashing (Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998): each replica
// has a score for a request, and the largest wins. All replicas that the spec names take part, whether they are up or
// not. So the answer does not depend on how old the asker's table of peers is, and two senders of one fan-in never send
// the parts of a request to different replicas. That nobody lands on a replica which is down is the coordinator's care:
// it gives a request an id whose replicas are all up when it is submitted. One that is not in the asker's table yet is
// waited for; the request's deadline bounds the wait.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/ids.h"

namespace millrace {

// Steele, Lea and Flood's SplitMix64 finalizer: every bit of the input moves every bit of the output.
constexpr uint64_t mix_bits(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// FNV-1a, the same on every machine.
constexpr uint64_t hash_name(std::string_view name) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return hash;
}

// `stage_hash` is hash_name() of the stage; `replicas`, at least 1, is what its spec says.
constexpr uint32_t choose_replica(ReqId id, uint64_t stage_hash, uint32_t replicas) {
  uint32_t best = 0;
  uint64_t best_score = 0;
  for (uint32_t replica = 0; replica < replicas && replicas > 1; ++replica) {
    const uint64_t score = mix_bits(mix_bits(id.value ^ stage_hash) + replica);
    if (replica == 0 || score > best_score) best = replica, best_score = score;
  }
  return best;
}

constexpr uint32_t choose_replica(ReqId id, std::string_view stage, uint32_t replicas) {
  return choose_replica(id, hash_name(stage), replicas);
}

}  // namespace millrace
