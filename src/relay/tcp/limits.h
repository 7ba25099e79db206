// The named limits of the TCP relay. docs/relay-tcp.md explains them. Thread safety: constants.
#pragma once

#include <cstddef>
#include <cstdint>

namespace millrace::tcp {

inline constexpr std::size_t kFrameBytes = 512u << 10;    // payload of one DATA frame, at most
inline constexpr std::size_t kRangeBytes = 4u << 20;      // asked for with one REQUEST, at most
inline constexpr std::size_t kMaxRangesPerCall = 64;      // of memory, of one system call
inline constexpr std::size_t kHashedBytes = 96u << 10;    // sent, then hashed while they are in the cache
inline constexpr std::size_t kHashFirstBytes = 8u << 10;  // a frame up to so large goes out in one call
inline constexpr int kMaxCallsPerTurn = 16;               // a busy connection lets the others in after so many

inline constexpr int kRangesInFlight = 2;  // of one get on one connection: one travels while the next is asked for
inline constexpr std::size_t kMaxControlBytes = 64u << 10;  // control frames waiting on one connection; more: closed

inline constexpr int kMaxStreams = 16;              // RelayOptions::streams
inline constexpr int kStreamsToAnotherHost = 2;     // where it is 0; over loopback one is faster than two
inline constexpr std::size_t kMaxInbound = 512;     // connections that peers opened
inline constexpr std::size_t kMaxOutbound = 512;    // connections that this instance opened
inline constexpr std::size_t kMinSecretBytes = 32;  // RelayOptions::secret
inline constexpr int kListenBacklog = 512;

inline constexpr int kIdlePingMs = 5'000;    // the opener of an idle connection pings so often
inline constexpr int kIdleCloseMs = 60'000;  // the opener closes a connection that nothing used for so long
inline constexpr int kIdleLostMs = 20'000;   // an inbound connection that was silent for so long is half open: closed
inline constexpr int kAcceptPauseMs = 100;   // after accept() ran out of descriptors

}  // namespace millrace::tcp
