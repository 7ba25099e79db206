// The proof that both ends of a connection know the shared secret, without sending it.
//
//   proof = HMAC-SHA256(secret, label | reader's nonce | writer's nonce | reader's instance | writer's instance |
//                               reader's address)
//
// The label distinguishes the two directions, so that no proof can be sent back to its maker; the nonces are new
// for each connection, so that none can be played again. Only the handshake is authenticated so: the bytes that follow
// are checksummed, not encrypted.
//
// Thread safety: free functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "relay/session/frame.h"

namespace millrace::session {

using Nonce = std::array<std::byte, kNonceBytes>;
using Proof = std::array<std::byte, kProofBytes>;

// What both ends know of the connection that they are opening.
struct Transcript {
  Nonce reader_nonce{};
  Nonce writer_nonce{};
  uint64_t reader_instance = 0;
  uint64_t writer_instance = 0;
  std::string reader_address;
};

enum class Prover { kReader, kWriter };

Proof prove(std::string_view secret, Prover who, const Transcript& transcript);
// In constant time.
bool same_proof(std::span<const std::byte> a, const Proof& b);

void fill_random(std::span<std::byte> bytes);  // from the kernel
uint64_t random_u64();                         // never 0

}  // namespace millrace::session
