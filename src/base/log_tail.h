// The last lines of this process's log, kept in memory while they are followed. A line without a follower costs two
// loads of numbers, and is not kept.
//
// Thread safety: all functions from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"

namespace millrace {

inline constexpr std::size_t kMaxLogTailLines = 50;
inline constexpr std::size_t kMaxLogTailBytes = 400;  // of a line; a longer one is cut

struct LogTailLine {
  uint64_t number = 0;  // from 1; of two lines the later one has the larger
  int64_t unix_ms = 0;
  LogLevel level = LogLevel::kInfo;
  std::string text;  // as log_line() makes it
};

// While one is there, lines are kept; when the last goes, they are gone.
class LogFollower {
 public:
  LogFollower();
  ~LogFollower();
  LogFollower(const LogFollower&) = delete;
  LogFollower& operator=(const LogFollower&) = delete;

  std::vector<LogTailLine> lines() const;  // the oldest first
};

// As a follower that is there for `lease_ms` from now on: for one that asks again and again, and may stop without a
// word.
std::vector<LogTailLine> leased_log_lines(int64_t lease_ms);

// For log_write().
void add_to_log_tail(LogLevel level, std::string_view line);

}  // namespace millrace
