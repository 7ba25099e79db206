// RangeLiveness: which ranges of a chain have gone silent. A range that has sent LayerAlive once, or that a chain was
// completed with, is expected to go on.
// Silence is counted only while this process looks: what it sleeps through, or computes through, counts for
// kAliveCheckMs at most, so that a machine without a processor to spare is no reason to give a range up.
//
// Owner: ChainRunner, on its compute thread. Thread safety: none.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

namespace millrace {

inline constexpr int kAliveMs = 500;         // between two LayerAlive of a range
inline constexpr int kAliveCheckMs = 500;    // between two looks at them
inline constexpr int kRangeSilentMs = 2000;  // after so long it is given up until it sends again
inline constexpr int kRangeHungMs = 10'000;  // and after so long its process is ended

class RangeLiveness {
 public:
  using Clock = std::chrono::steady_clock;
  explicit RangeLiveness(uint32_t ranges) : silent_ms_(ranges) {}

  bool any() const { return any_; }
  void on_alive(uint32_t range) {
    if (range >= silent_ms_.size()) return;
    silent_ms_[range] = 0;
    any_ = true;
  }
  // A complete chain of ranges that send: one that stops before its first message has arrived is silent from now on.
  void expect_all() {
    for (std::size_t i = 1; i < silent_ms_.size(); ++i) silent_ms_[i] = silent_ms_[i].value_or(0);
    any_ = true;
  }
  // A range that is started again is unknown until it sends.
  void forget(uint32_t range) {
    if (range < silent_ms_.size()) silent_ms_[range].reset();
  }
  // Counts the time since the last look.
  void look(Clock::time_point now);
  // The first range that is silent for longer; nullopt: none.
  std::optional<uint32_t> silent_over(int64_t limit_ms) const;

 private:
  std::vector<std::optional<int64_t>> silent_ms_;  // by range; none: it never sent
  std::optional<Clock::time_point> last_;
  bool any_ = false;
};

}  // namespace millrace
