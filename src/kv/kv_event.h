// KvEvent: what changed in the cache, for routers that send a request where its prefix already is.
//
// A block is one page of tokens. Its hash names it together with everything before it:
//   digest(block) = SHA-256(digest of the block before, then the block's tokens as little-endian int32)
//   hash(block)   = the first 8 bytes of the digest, read big-endian as a signed 64-bit number
// The first block of a namespace has no digest before it if the extra key is empty, else SHA-256(extra key). The weight
// version is no part of the hash; it stands in the event, and a router that cares keys on both.
//
// Events are a hint: over kMaxKvEvents that no reader took, new ones are dropped and counted. A reader that sees a
// count other than 0 no longer knows what is cached. Thread safety: values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace millrace {

inline constexpr std::size_t kMaxKvEvents = 65536;

enum class KvEventKind : uint8_t {
  kStored = 0,   // one block came; `hashes` has one element
  kRemoved = 1,  // blocks went, in the order of their path
  kCleared = 2,  // all blocks of all namespaces and media went; no other field is set
};

enum class KvMedium : uint8_t { kPool = 0, kHost = 1 };
inline const char* kv_medium_name(KvMedium medium) { return medium == KvMedium::kPool ? "pool" : "host"; }

struct KvEvent {
  KvEventKind kind = KvEventKind::kStored;
  KvMedium medium = KvMedium::kPool;
  std::vector<int64_t> hashes;
  std::optional<int64_t> parent;  // kStored: the block before; nullopt: it is the first
  std::vector<int32_t> tokens;    // kStored: the block's, block_size of them
  int32_t block_size = 0;         // tokens
  std::string extra_key;
  uint64_t weight_version = 0;
};

struct KvEvents {
  std::vector<KvEvent> events;  // in the order in which they happened
  uint64_t dropped = 0;         // after these, since the last call
};

}  // namespace millrace
