// The limits of process groups. A peer's length fields are compared with them before anything is allocated.
//
// Thread safety: constants.
#pragma once

#include <chrono>
#include <cstddef>

namespace millrace::collective {

constexpr int kMaxWorldSize = 1024;
constexpr std::size_t kMaxGroupNameBytes = 256;
constexpr std::size_t kMaxStoreKeyBytes = 1024;
// The largest value is an address list of PyTorch 1: 136 bytes for each rank.
constexpr std::size_t kMaxStoreValueBytes = 256 * 1024;
constexpr std::size_t kMaxHostNameBytes = 1024;
// Connections that have not sent which pair they are, beside one for each rank that is awaited.
constexpr std::size_t kMaxPendingConnections = 64;
// Broadcasts that a peer may announce before their turn.
constexpr std::size_t kMaxAnnouncements = 65536;
// A broadcast arrives in slices of at most so many bytes.
constexpr std::size_t kSliceBytes = 256 << 10;
// A trainer may begin to listen after its request: connecting is tried again so often.
constexpr std::chrono::milliseconds kConnectAgain{50};

}  // namespace millrace::collective
