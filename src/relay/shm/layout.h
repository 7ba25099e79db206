// The bytes that two processes of the shared-memory relay have in common: the state table of a writer, the hold table
// of one reader, and the three messages on their socket. docs/relay-shm.md draws them.
//
//      state table   written by the writer, mapped read-only by readers
//          0    StateHeader, 64 bytes
//         64    SlotRecord[slots], 128 bytes each
//      hold table    one for each connection, written by its reader, read by the writer
//          0    uint64_t[slots]: the hold words
//
// A slot is one put. Its word holds which generation is offered; all other fields of the record are written before the
// word and stay as they are while the hold word of a reader that the put is for names that generation. A reader takes a
// slot in the order of a hazard pointer: it writes its hold word, then looks whether the slot is still offered. The
// writer revokes in the other order: it changes the slot's word, then looks at the hold words. With both orders
// sequentially consistent at least one of the two sees the other, and no process ever holds a lock. A put with a
// destination has the holds of that reader alone: another one looks at the slot's word again after it has read the
// record, and uses nothing of what it read where the word has changed.
//
// Thread safety: the words are atomics, the other fields see above. x86-64 and AArch64 only: the words are
// little-endian 64-bit atomics that need no lock.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

namespace millrace::shm {

inline constexpr uint32_t kMagic = 0x48534D4D;     // "MMSH"
inline constexpr uint16_t kVersion = 1;            // of tables and messages
inline constexpr std::size_t kPageBytes = 4096;    // extents of the pool are multiples of it
inline constexpr std::size_t kPartAlignment = 64;  // of parts inside an extent
inline constexpr uint32_t kMaxSlots = 1u << 16;    // credits of one relay
inline constexpr std::size_t kTailBytes = 16;      // of a descriptor: slot, zeros, key

static_assert(std::endian::native == std::endian::little);
static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(std::atomic<uint32_t>::is_always_lock_free);

struct StateHeader {
  uint32_t magic;
  uint32_t version;
  uint32_t slots;
  std::atomic<uint32_t> asleep;  // 1: a reader that releases rings the writer's bell; 0: the writer will look by itself
  std::atomic<uint32_t> closed;  // 1: the writer offers nothing any more
  uint32_t zeros[11];
};
static_assert(sizeof(StateHeader) == 64);

// A slot's word: generation * 4 + Offer.
enum class Offer : uint64_t { kFree = 0, kOffered = 1, kRevoked = 2 };
inline constexpr uint64_t slot_word(uint32_t generation, Offer offer) {
  return uint64_t{generation} << 2 | static_cast<uint64_t>(offer);
}

struct SlotRecord {
  std::atomic<uint64_t> word;
  uint64_t key;          // random: a process that does not know it was not sent this put's descriptor
  uint64_t op;           // the put
  uint64_t destination;  // hash of the only reader's instance; 0: any
  uint64_t offset;       // of the extent, in the pool
  uint64_t extent_bytes;
  uint64_t bytes;       // of all parts
  uint64_t sizes_hash;  // as in the descriptor
  uint32_t parts;
  uint32_t readers;  // how many gets the put is for
  uint64_t zeros[7];
};
static_assert(sizeof(SlotRecord) == 128);

// A hold word: what one reader has of a slot's generation: gets that hold it now, and gets that released it.
struct Hold {
  uint32_t generation = 0;
  uint16_t held = 0;
  uint16_t released = 0;
};
inline constexpr uint64_t pack(Hold hold) {
  return uint64_t{hold.generation} << 32 | uint64_t{hold.held} << 16 | hold.released;
}
inline constexpr Hold unpack(uint64_t word) {
  return {static_cast<uint32_t>(word >> 32), static_cast<uint16_t>(word >> 16), static_cast<uint16_t>(word)};
}

inline constexpr std::size_t round_up(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }
inline constexpr std::size_t state_bytes(uint32_t slots) {
  return round_up(sizeof(StateHeader) + slots * sizeof(SlotRecord), kPageBytes);
}
inline constexpr std::size_t holds_bytes(uint32_t slots) { return round_up(slots * sizeof(uint64_t), kPageBytes); }

// Where the parts stand in an extent: one after the other, each aligned. The bytes up to the end of the last one.
template <typename Visit>
std::size_t lay_out(std::span<const std::size_t> sizes, Visit&& visit) {
  std::size_t at = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    at = round_up(at, kPartAlignment);
    visit(i, at);
    at += sizes[i];
  }
  return at;
}

// Messages on the SOCK_SEQPACKET socket; integers little-endian, instances as their 16 random bytes.
enum class MessageType : uint16_t { kHello = 1, kWelcome = 2, kRefusal = 3 };
enum class Refusal : uint32_t { kNotUnderstood = 1, kOtherInstance = 2, kTooManyPeers = 3, kNoMemory = 4 };

struct Hello {  // reader -> writer, once
  uint32_t magic = kMagic;
  uint16_t version = kVersion;
  MessageType type = MessageType::kHello;
  uint8_t writer[16] = {};  // whom the reader means
  uint8_t reader[16] = {};  // its identity
};
struct Welcome {  // writer -> reader, once, with four descriptors: pool, state table, hold table, bell
  uint32_t magic = kMagic;
  uint16_t version = kVersion;
  MessageType type = MessageType::kWelcome;
  uint32_t slots = 0;
  uint32_t zeros = 0;
  uint64_t pool_bytes = 0;
};
struct Refused {  // writer -> reader, then the connection ends
  uint32_t magic = kMagic;
  uint16_t version = kVersion;
  MessageType type = MessageType::kRefusal;
  Refusal reason = Refusal::kNotUnderstood;
  uint32_t zeros = 0;
};
static_assert(sizeof(Hello) == 40 && sizeof(Welcome) == 24 && sizeof(Refused) == 16);
inline constexpr int kWelcomeFds = 4;

}  // namespace millrace::shm
