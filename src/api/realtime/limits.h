// The limits of /v1/realtime, beside those of every WebSocket (http/limits.h) and of every request (wire/limits.h).
//
// Thread safety: constants.
#pragma once

#include <cstddef>
#include <cstdint>

namespace millrace::api {

inline constexpr int kRealtimeRate = 24000;              // Hz, mono, 16 bits: the one format of audio in and out
inline constexpr std::size_t kMaxRealtimeSessions = 64;  // open at once: 503 above
inline constexpr int64_t kMaxInputSeconds = 300;         // in the buffer of input audio
inline constexpr int64_t kMinCommitMs = 100;             // of audio in a turn
inline constexpr std::size_t kMaxRealtimeItems = 1024;   // of one conversation
inline constexpr std::size_t kMaxRealtimeConversationBytes = std::size_t{32} << 20;  // its texts, audio and pictures
inline constexpr std::size_t kMaxRealtimeBytes = std::size_t{512} << 20;  // of all sessions, buffers included
inline constexpr std::size_t kMaxInstructionsBytes = std::size_t{256} << 10;
inline constexpr std::size_t kMaxSettingsBytes = std::size_t{1} << 20;         // tools and sampling, as JSON
inline constexpr std::size_t kMaxInlineRealtimeBytes = std::size_t{64} << 10;  // of text: more is handled aside
inline constexpr std::size_t kMaxRealtimeIdBytes = 64;  // of an item or an event, where the client chooses it
inline constexpr int64_t kMaxPaddingMs = 5000;          // prefix_padding_ms
inline constexpr int64_t kMinSilenceMs = 100, kMaxSilenceMs = 30000;  // silence_duration_ms

}  // namespace millrace::api
