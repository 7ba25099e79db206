// Liveness: whether the peer of one connection still lives, and when it is to be pinged.
//
// Every byte that arrives is a sign of life. While something is expected of the peer, a side that has sent nothing for
// a quarter of silent_ms sends a PING, and a peer without a sign of life for silent_ms is dead. Both sides do it, so
// that neither takes a quiet moment of a long transfer for the end.
//
// Owner: the connection. Thread safety: the loop's thread.
#pragma once

#include <algorithm>
#include <cstdint>

namespace millrace::session {

inline constexpr int kPingsPerSilence = 4;

struct Liveness {
  explicit Liveness(int64_t now_ms) : seen_ms(now_ms), sent_ms(now_ms) {}

  bool dead(int64_t now_ms, int silent_ms) const { return now_ms >= seen_ms + silent_ms; }
  // True: send a PING now. Lowers due_ms to when it is due again.
  bool ping_due(int64_t now_ms, int64_t every_ms, int64_t& due_ms) {
    const bool due = now_ms >= std::max(sent_ms, ping_ms) + every_ms;
    if (due) ping_ms = now_ms;
    due_ms = std::min(due_ms, std::max(sent_ms, ping_ms) + every_ms);
    return due;
  }
  static int64_t ping_every_ms(int silent_ms) { return std::max(1, silent_ms / kPingsPerSilence); }

  int64_t seen_ms;      // last sign of the peer's life
  int64_t sent_ms;      // last time that something was sent
  int64_t ping_ms = 0;  // last time that a PING was due
};

}  // namespace millrace::session
