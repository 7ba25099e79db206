// ChainMetrics: what the ranges of a chain did, for /metrics. A range's idle time is what it did not compute while
// parts were in flight: at one sequence all but one of the ranges are idle at any time.
//
// Owner: ChainRunner. Thread safety: add_... by its compute thread; samples() by any.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "runner/runner.h"

namespace millrace {

class ChainMetrics {
 public:
  using Clock = std::chrono::steady_clock;
  explicit ChainMetrics(uint32_t ranges) : compute_us_(ranges) {}

  void add_sent(uint64_t row_bytes, Clock::time_point now);
  // A part is back; `left`: parts still in flight. `answer_us`: of the first range, for head and draws.
  void add_back(std::span<const int64_t> compute_us, int64_t answer_us, uint64_t row_bytes, std::size_t left,
                Clock::time_point now);
  // All parts in flight are lost, and a new epoch begins.
  void add_break(Clock::time_point now);

  std::vector<RunnerMetric> samples() const;

 private:
  int64_t busy_us(Clock::time_point now) const;

  mutable std::mutex mutex_;  // guards all
  std::vector<int64_t> compute_us_;
  uint64_t parts_ = 0, row_bytes_ = 0, breaks_ = 0;
  int64_t busy_us_ = 0;                          // with parts in flight, up to the last time there were none
  std::optional<Clock::time_point> busy_since_;  // parts are in flight
};

}  // namespace millrace
