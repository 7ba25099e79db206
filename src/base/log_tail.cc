#include "base/log_tail.h"

#include <atomic>
#include <chrono>
#include <deque>
#include <mutex>

#include "base/clock.h"
#include "base/utf8.h"

namespace millrace {
namespace {

struct Tail {
  std::atomic<int> followers{0};
  std::atomic<int64_t> leased_until_ms{0};  // of the steady clock; 0: none is open
  std::mutex mutex;                         // guards what follows
  std::deque<LogTailLine> lines;
  uint64_t last_number = 0;
};

// Never destroyed: threads may log while the process ends.
Tail& tail() {
  static Tail* const the_one = new Tail;
  return *the_one;
}

// Under the lock. Lines that were kept for a lease go at its end: with the next line, or when someone asks again.
bool is_followed() {
  if (tail().followers > 0 || tail().leased_until_ms > monotonic_ms()) return true;
  tail().leased_until_ms = 0;
  tail().lines.clear();
  return false;
}

}  // namespace

LogFollower::LogFollower() { ++tail().followers; }

LogFollower::~LogFollower() {
  std::lock_guard lock(tail().mutex);
  --tail().followers;
  is_followed();
}

std::vector<LogTailLine> LogFollower::lines() const {
  std::lock_guard lock(tail().mutex);
  return {tail().lines.begin(), tail().lines.end()};
}

std::vector<LogTailLine> leased_log_lines(int64_t lease_ms) {
  std::lock_guard lock(tail().mutex);
  is_followed();
  tail().leased_until_ms = monotonic_ms() + lease_ms;
  return {tail().lines.begin(), tail().lines.end()};
}

void add_to_log_tail(LogLevel level, std::string_view line) {
  if (tail().followers.load(std::memory_order_relaxed) == 0 &&
      tail().leased_until_ms.load(std::memory_order_relaxed) == 0) {
    return;
  }
  using std::chrono::milliseconds;
  const auto now = std::chrono::duration_cast<milliseconds>(std::chrono::system_clock::now().time_since_epoch());
  std::lock_guard lock(tail().mutex);
  if (!is_followed()) return;
  if (tail().lines.size() == kMaxLogTailLines) tail().lines.pop_front();
  tail().lines.push_back({++tail().last_number, now.count(), level, std::string(utf8_prefix(line, kMaxLogTailBytes))});
}

}  // namespace millrace
