// Two hashes of a block (one page of tokens). They have nothing to do with each other:
//   keyed_block_hash   finds a child among its siblings; 64 bits, keyed with a secret of this process
//   BlockDigest        names a block and its whole prefix to the outside (kv/kv_event.h); the same everywhere
// Thread safety: pure functions; the secret is made once.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace millrace {

// SipHash-1-3 (Aumasson, Bernstein: "SipHash: a fast short-input PRF", 2012) of the tokens as little-endian int32. The
// key is random, so that no client can write prompts that all fall into one bucket. Nothing but the slot in a hash
// table depends on it.
uint64_t keyed_block_hash(std::span<const int32_t> block);

// The same with a given key, for the tests.
uint64_t siphash13(std::span<const int32_t> block, uint64_t key0, uint64_t key1);

using BlockDigest = std::array<uint8_t, 32>;

// SHA-256 over `parent` (nothing if nullptr), then the tokens as little-endian int32.
BlockDigest chain_digest(const BlockDigest* parent, std::span<const int32_t> block);
// SHA-256 of a text: what stands before the first block of a namespace with an extra key.
BlockDigest text_digest(std::string_view text);
// The first 8 bytes, big-endian.
int64_t short_hash(const BlockDigest& digest);

}  // namespace millrace
