// The named limits of transfers of KV pages. Thread safety: constants.
#pragma once

#include <cstddef>
#include <cstdint>

namespace millrace::transfer {

inline constexpr int32_t kMinRemoteTokens = 128;                 // fewer that the cache lacks are computed here
inline constexpr std::size_t kMaxTransfers = 4096;               // open at a server, in each direction
inline constexpr std::size_t kMaxEarlyWants = 1024;              // that have come before their request
inline constexpr std::size_t kMaxEndpoints = 256;                // of other servers, connected at the same time
inline constexpr int64_t kPartBytes = int64_t{1} << 20;          // of one KvPart, or one page; a core's cache holds it
inline constexpr int64_t kLayersBytes = 64 << 10;                // fewer of layers wait for the next layer
inline constexpr int kWindowParts = 16;                          // sent and not taken yet, of one transfer
inline constexpr int kFetchTimeoutMs = 10'000;                   // D waits so long for the bytes of a part from a relay
inline constexpr int64_t kSentBytesPerStep = int64_t{32} << 20;  // of all transfers, between two steps; one part more
inline constexpr int64_t kLeaseMs = 10'000;                      // P keeps a transfer so long after D's last message
inline constexpr int64_t kProgressTimeoutMs = 10'000;            // D waits so long for the next part, or the first
inline constexpr int64_t kRenewMs = 500;               // D repeats KvTaken, so that P and D know of each other
inline constexpr int64_t kAgainMs = 2'000;             // without progress D asks once more for what was sent
inline constexpr int64_t kAvoidMs = 10'000;            // a P that did not answer is not asked for so long
inline constexpr int64_t kTombstoneMs = 60'000;        // an id that has ended begins nothing for so long
inline constexpr std::size_t kMaxTombstones = 16'384;  // the oldest go first

}  // namespace millrace::transfer
