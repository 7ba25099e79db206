// Frames: what two relays send each other in the session protocol. A fixed header of 64 bytes, little-endian, and a
// payload.
//
//    0 u32 magic "MRTP"      4 u16 version       6 u8 type       7 u8 flags
//    8 u32 length (payload) 12 u32 code         16 u64 op       24 u64 generation
//   32 u64 ticket           40 u64 offset       48 u64 extra    56 u64 XXH3-64 of bytes 0..55
//
// docs/relay.md describes what each type puts into the fields. How a frame travels is the channel's business: a byte
// stream carries header, payload and, behind a DATA frame's payload, its checksum as a trailer; a message transport
// carries a DATA frame's checksum in `extra`.
//
// Pure functions over bytes: no socket, no state. Thread safety: free functions and values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/status.h"

namespace millrace::session {

inline constexpr uint32_t kMagic = 0x5054524D;  // "MRTP" as bytes
inline constexpr uint16_t kVersion = 2;
inline constexpr std::size_t kHeaderBytes = 64;
inline constexpr std::size_t kNonceBytes = 32;
inline constexpr std::size_t kProofBytes = 32;
inline constexpr std::size_t kRequestBytes = 16;                    // payload of a REQUEST
inline constexpr std::size_t kMaxHelloBytes = kNonceBytes + 1024;   // nonce and address
inline constexpr std::size_t kMaxReasonBytes = 512;                 // text of a REFUSE
inline constexpr std::size_t kMaxGrantBytes = 1088;                 // of what the channel puts into a GRANT
inline constexpr std::size_t kMaxJoinBytes = 128;                   // NCCL's unique id
inline constexpr std::size_t kMaxControlPayload = kMaxGrantBytes;   // the longest payload of a frame that is not DATA
inline constexpr std::size_t kMaxDataBytes = std::size_t{4} << 20;  // payload of a DATA frame; a channel may take less

// R: sent by the reader, which opens the connection. W: sent by the writer.
enum class FrameType : uint8_t {
  kHello = 1,      // R: nonce, then the reader's address; op = its instance, generation = the instance it looks for
  kChallenge = 2,  // W: nonce; only where a secret is set
  kProof = 3,      // R: HMAC
  kWelcome = 4,    // W: HMAC, or nothing without a secret; op = its instance
  kRequest = 5,    // R: bytes [offset, offset + extra) of a put; payload: u64 total, u64 hash of the sizes
  kData = 6,       // W: the bytes at offset; no bytes only where the put has none
  kRefuse = 7,     // W: code = StatusCode; ticket = the get, or 0: the whole connection; payload: why, as text
  kRelease = 8,    // R: the get is over: code 0 has all bytes, else the StatusCode it ended with
  kPing = 9,       // both
  kPong = 10,      // both: the answer
  kGrant = 11,     // W: [offset, offset + extra) may be fetched; payload: the channel's: from where
  kReleased = 12,  // W: the answer to a RELEASE: code 0 where the put was still open
  kBye = 13,       // both: the sender closes
  kJoin = 14,      // W: the channel's: what both sides need before the first byte moves
};

inline constexpr std::size_t kTrailerBytes = 8;  // u64 XXH3-64 of the payload; not in Header::length

inline constexpr uint8_t kFlagChecksum = 1;  // DATA: has a checksum; REQUEST: wanted; HELLO: a secret is set
inline constexpr uint8_t kFlagInline = 2;    // REQUEST: by DATA frames, as the reader cannot use a GRANT
inline constexpr uint8_t kFlagAnswer = 4;    // RELEASE: RELEASED is wanted
inline constexpr uint8_t kFlagWriter = 8;    // message channels: from the writing side of the connection

struct Header {
  uint16_t version = kVersion;
  FrameType type = FrameType::kPing;
  uint8_t flags = 0;
  uint32_t length = 0;
  uint32_t code = 0;
  uint64_t op = 0;
  uint64_t generation = 0;
  uint64_t ticket = 0;
  uint64_t offset = 0;
  uint64_t extra = 0;
  friend bool operator==(const Header&, const Header&) = default;
};

using HeaderBytes = std::array<std::byte, kHeaderBytes>;
HeaderBytes encode(const Header& header);

// kInvalidArgument: not our magic, a wrong header checksum, an unknown type, flag or code, or a payload length that the
// type does not have. kUnsupported: another version, which the message names.
Result<Header> decode(std::span<const std::byte, kHeaderBytes> bytes);

// A REQUEST's payload.
struct RequestBody {
  uint64_t total = 0;       // bytes of the whole put, as the reader knows it
  uint64_t sizes_hash = 0;  // of its parts
};
std::array<std::byte, kRequestBytes> encode(const RequestBody& body);
RequestBody decode_request(std::span<const std::byte, kRequestBytes> bytes);

void store_u64(std::byte* at, uint64_t value);  // little-endian
uint64_t load_u64(const std::byte* at);

// Of the frame's payload and trailer together, in a byte stream.
inline std::size_t body_bytes(const Header& header) {
  const bool trailer = header.type == FrameType::kData && (header.flags & kFlagChecksum) != 0;
  return header.length + (trailer ? kTrailerBytes : 0);
}

uint64_t hash64(std::span<const std::byte> bytes);  // XXH3-64, seed 0

// XXH3-64 of bytes that arrive in several calls.
class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(const Hasher&) = delete;
  Hasher& operator=(const Hasher&) = delete;
  void reset();
  void add(std::span<const std::byte> bytes);
  uint64_t digest() const;

 private:
  void* state_;  // XXH3_state_t
};

std::string_view frame_type_name(FrameType type);

}  // namespace millrace::session
