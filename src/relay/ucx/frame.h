// Frame: the head of every active message between two UCX relays. docs/relay-ucx.md has it byte by byte.
//
//   reader                           writer
//     kHello -------------------------->          the first thing on a connection, which the reader makes
//     <----------------------- kWelcome
//     kGet (op, generation, sizes) ---->
//     <-- kData (segment), as many as there are   the bytes by message; or
//     <-- kSlot (arena, address, key)             where in a shared pool they stand, and the reader copies them; or
//     <-- kRefuse (status)
//     kRelease (status) --------------->          it is over for the reader, well or not
//     <---------------------- kReleased           where asked for: whether the bytes stood still up to the end
//   kPing, kPong: while one side waits for the other. kBye: the sender closes.
//
// Thread safety: values; free functions without state.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "base/status.h"
#include "relay/instance_id.h"

namespace millrace::ucx {

inline constexpr uint8_t kFrameVersion = 1;
inline constexpr std::size_t kMaxErrorText = 512;  // of a kRefuse
inline constexpr std::size_t kMaxKeyBytes = 1024;  // of an arena

enum class FrameType : uint8_t {
  kHello = 1,
  kWelcome = 2,
  kGet = 3,
  kData = 4,
  kSlot = 5,
  kRefuse = 6,
  kRelease = 7,
  kReleased = 8,
  kPing = 9,
  kPong = 10,
  kBye = 11,
};

inline constexpr uint8_t kFlagByMessage = 1;  // kGet: not through the pool, which the reader could not map
inline constexpr uint8_t kFlagAnswer = 2;     // kRelease: the reader waits for kReleased
inline constexpr uint8_t kFlagSum = 4;        // kData: `sum` is the XXH3-64 of the payload
inline constexpr uint8_t kFlagWriter = 8;     // all: from the side of the connection that writes

struct Frame {
  char magic[4] = {'M', 'R', 'U', 'X'};
  uint8_t version = kFrameVersion;
  FrameType type = FrameType::kPing;
  uint8_t code = 0;                // kRefuse, kRelease, kReleased: a StatusCode
  uint8_t flags = 0;               // kFlag...
  std::array<uint8_t, 16> from{};  // the sender's InstanceId::random
  uint64_t boot = 0;               // kHello, kWelcome: the sender's InstanceId::boot
  uint64_t get = 0;                // all of a get: the reader's number of it
  uint64_t op = 0;                 // kGet: the put's
  uint64_t generation = 0;         // kGet, kSlot: the put's
  uint64_t sum = 0;                // kGet: hash of the sizes; kData: of the payload
  uint64_t place = 0;              // kData: which segment; kSlot: the slot's address, as the writer knows it
  uint64_t arena = 0;              // kSlot
  uint32_t bytes = 0;              // of the payload
  uint32_t pid = 0;                // kHello, kWelcome: for messages
};
static_assert(sizeof(Frame) == 88);

// A frame with its kind's fields in range, from a head and the length of its payload; nullopt for all else. What the
// payload holds and whether the numbers mean anything here is for the receiver to check.
std::optional<Frame> decode_frame(std::span<const std::byte> head, std::size_t payload_bytes);

}  // namespace millrace::ucx
