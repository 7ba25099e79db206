#include "relay/session/frame.h"

#include <algorithm>

#include "base/xxh3.h"

namespace millrace::session {
namespace {

void store_bytes(std::byte* at, uint64_t value, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) at[i] = static_cast<std::byte>(value >> (8 * i));
}

uint64_t load_bytes(const std::byte* at, std::size_t count) {
  uint64_t value = 0;
  for (std::size_t i = 0; i < count; ++i) value |= static_cast<uint64_t>(at[i]) << (8 * i);
  return value;
}

// What a receiver allocates for a payload is bounded here, before any of it is read, for every channel alike.
struct LengthRange {
  uint32_t min = 0;
  uint32_t max = 0;
};

LengthRange payload_range(FrameType type) {
  switch (type) {
    case FrameType::kHello:
      // UCX sends its HELLO without a nonce; the handshake of the TCP connections asks for it.
      return {0, kMaxHelloBytes};
    case FrameType::kChallenge:
      return {kNonceBytes, kNonceBytes};
    case FrameType::kProof:
      return {kProofBytes, kProofBytes};
    case FrameType::kWelcome:
      return {0, kProofBytes};
    case FrameType::kRequest:
      return {kRequestBytes, kRequestBytes};
    case FrameType::kData:
      // Without the trailer. A channel may take less: TCP kFrameBytes.
      return {0, kMaxDataBytes};
    case FrameType::kRefuse:
      return {0, kMaxReasonBytes};
    case FrameType::kGrant:
      return {0, kMaxGrantBytes};
    case FrameType::kJoin:
      return {1, kMaxJoinBytes};
    default:
      return {0, 0};
  }
}

// Refused, not ignored: a peer that sets a flag expects something of it.
uint8_t allowed_flags(FrameType type) {
  switch (type) {
    case FrameType::kHello:
      return kFlagChecksum;
    case FrameType::kData:
      return kFlagChecksum | kFlagWriter;
    case FrameType::kRequest:
      return kFlagChecksum | kFlagInline;
    case FrameType::kRelease:
      return kFlagAnswer;
    default:
      return kFlagWriter;
  }
}

}  // namespace

// Byte by byte: the fields of a frame have no alignment, and compilers make one move of it on little-endian processors.
void store_u64(std::byte* at, uint64_t value) { store_bytes(at, value, 8); }
uint64_t load_u64(const std::byte* at) { return load_bytes(at, 8); }

uint64_t hash64(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

HeaderBytes encode(const Header& header) {
  HeaderBytes out{};
  store_bytes(&out[0], kMagic, 4);
  store_bytes(&out[4], header.version, 2);
  out[6] = static_cast<std::byte>(header.type);
  out[7] = static_cast<std::byte>(header.flags);
  store_bytes(&out[8], header.length, 4);
  store_bytes(&out[12], header.code, 4);
  store_u64(&out[16], header.op);
  store_u64(&out[24], header.generation);
  store_u64(&out[32], header.ticket);
  store_u64(&out[40], header.offset);
  store_u64(&out[48], header.extra);
  store_u64(&out[56], hash64(std::span(out).first(56)));
  return out;
}

// The magic and the version first: a peer of another version may keep its checksum elsewhere, and must get
// "unsupported", not "damaged".
Result<Header> decode(std::span<const std::byte, kHeaderBytes> bytes) {
  const uint64_t magic = load_bytes(&bytes[0], 4);
  if (magic != kMagic) return invalid_argument("magic is {:#010x}; wanted {:#010x}", magic, kMagic);
  Header header;
  header.version = static_cast<uint16_t>(load_bytes(&bytes[4], 2));
  if (header.version != kVersion) {
    return error(StatusCode::kUnsupported, "version is {}; wanted {}", header.version, kVersion);
  }
  const uint64_t hash = load_u64(&bytes[56]);
  // Not against a hostile peer, which can compute it. It finds a stream that is out of step and a header that was
  // damaged, before a length in it is believed.
  if (hash != hash64(bytes.first(56))) return invalid_argument("the header's checksum is wrong");
  const auto type = static_cast<uint8_t>(bytes[6]);
  if (type < static_cast<uint8_t>(FrameType::kHello) || type > static_cast<uint8_t>(FrameType::kJoin)) {
    return invalid_argument("frame type is {}; wanted 1 to {}", type, static_cast<int>(FrameType::kJoin));
  }
  header.type = static_cast<FrameType>(type);
  header.flags = static_cast<uint8_t>(bytes[7]);
  const uint8_t allowed = allowed_flags(header.type);
  if ((header.flags & ~allowed) != 0) {
    return invalid_argument("the flags of a {} are {:#x}; wanted none but {:#x}", frame_type_name(header.type),
                            header.flags, allowed);
  }
  header.length = static_cast<uint32_t>(load_bytes(&bytes[8], 4));
  const LengthRange range = payload_range(header.type);
  if (header.length < range.min || header.length > range.max) {
    return invalid_argument("the length of a {} is {}; wanted {} to {}", frame_type_name(header.type), header.length,
                            range.min, range.max);
  }
  header.code = static_cast<uint32_t>(load_bytes(&bytes[12], 4));
  // So that a cast to StatusCode is a value of it.
  if (header.code > static_cast<uint32_t>(StatusCode::kInternal)) {
    return invalid_argument("code is {}; wanted 0 to {}", header.code, static_cast<int>(StatusCode::kInternal));
  }
  header.op = load_u64(&bytes[16]);
  header.generation = load_u64(&bytes[24]);
  header.ticket = load_u64(&bytes[32]);
  header.offset = load_u64(&bytes[40]);
  header.extra = load_u64(&bytes[48]);
  return header;
}

std::array<std::byte, kRequestBytes> encode(const RequestBody& body) {
  std::array<std::byte, kRequestBytes> out{};
  store_u64(&out[0], body.total);
  store_u64(&out[8], body.sizes_hash);
  return out;
}

RequestBody decode_request(std::span<const std::byte, kRequestBytes> bytes) {
  return {load_u64(&bytes[0]), load_u64(&bytes[8])};
}

// XXH3_createState() and not a member: the state must be aligned to 64 bytes, and xxhash.h stays out of the header.
Hasher::Hasher() : state_(XXH3_createState()) {
  CHECK(state_ != nullptr);
  reset();
}
Hasher::~Hasher() { XXH3_freeState(static_cast<XXH3_state_t*>(state_)); }
void Hasher::reset() { XXH3_64bits_reset(static_cast<XXH3_state_t*>(state_)); }
void Hasher::add(std::span<const std::byte> bytes) {
  XXH3_64bits_update(static_cast<XXH3_state_t*>(state_), bytes.data(), bytes.size());
}
uint64_t Hasher::digest() const { return XXH3_64bits_digest(static_cast<const XXH3_state_t*>(state_)); }

std::string_view frame_type_name(FrameType type) {
  // In the sequence of FrameType; 0 is none.
  static constexpr std::array<std::string_view, 15> kNames = {"0",       "HELLO", "CHALLENGE", "PROOF",   "WELCOME",
                                                              "REQUEST", "DATA",  "REFUSE",    "RELEASE", "PING",
                                                              "PONG",    "GRANT", "RELEASED",  "BYE",     "JOIN"};
  const auto index = static_cast<std::size_t>(type);
  return index < kNames.size() ? kNames[index] : "?";
}

}  // namespace millrace::session
