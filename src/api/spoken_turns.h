// SpokenTurns: what was spoken in earlier answers. A later request names such a turn by the id of its audio, as OpenAI
// has it, and the transcript stands for it in the conversation.
//
// Kept for kSpokenTurnSeconds, and less long where newer ones need the space. An id is 128 random bits from the system,
// so that no client finds the turns of another one.
//
// Owned by ApiState. Thread safety: all functions from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

namespace millrace::api {

inline constexpr int64_t kSpokenTurnSeconds = 3600;
inline constexpr std::size_t kMaxSpokenTurns = 4096;
inline constexpr std::size_t kMaxSpokenTurnsBytes = std::size_t{16} << 20;  // of all transcripts
inline constexpr std::size_t kMaxNamedTurnsBytes = std::size_t{4} << 20;    // of those that one conversation names

class SpokenTurns {
 public:
  // "audio_" and 32 hex digits.
  static std::string make_id();

  // Keeps the transcript; until when at the longest, in Unix seconds. `now_s` never decreases by much.
  int64_t add(const std::string& id, std::string transcript, int64_t now_s);
  // nullopt: unknown, expired, or replaced by newer ones.
  std::optional<std::string> find(std::string_view id, int64_t now_s) const;
  std::size_t size() const;

 private:
  struct Turn {
    std::string transcript;
    int64_t expires_at = 0;
  };
  void drop_oldest();  // with the lock held

  mutable std::mutex mutex_;  // guards what follows
  std::map<std::string, Turn, std::less<>> turns_;
  std::deque<std::string> oldest_first_;
  std::size_t bytes_ = 0;
};

}  // namespace millrace::api
