// StepLog: the last kLoggedSteps steps that came back, for operators (Scheduler::snapshot()). It
// is always written: one record of 32 bytes a step, and no allocation.
//
// Owner: the scheduler. Thread safety: none.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace millrace {

inline constexpr std::size_t kLoggedSteps = 128;

struct LoggedStep {
  uint64_t step = 0;  // its number; the first is 1
  int32_t prefill_rows = 0;
  int32_t decode_rows = 0;
  int32_t sequences = 0;
  int64_t compute_us = 0;
};

class StepLog {
 public:
  void add(const LoggedStep& step) { steps_[added_++ % kLoggedSteps] = step; }

  // The oldest first.
  std::vector<LoggedStep> steps() const {
    const std::size_t count = std::min(added_, kLoggedSteps);
    std::vector<LoggedStep> out;
    out.reserve(count);
    for (std::size_t i = added_ - count; i < added_; ++i) out.push_back(steps_[i % kLoggedSteps]);
    return out;
  }

 private:
  std::array<LoggedStep, kLoggedSteps> steps_;
  std::size_t added_ = 0;
};

}  // namespace millrace
