// What one render may still spend. Every loop that data drives charges it, so no template runs or grows without end.
//
// Thread safety: one render, one thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <ctime>

#include "text/jinja/error.h"
#include "text/jinja/limits.h"

namespace millrace::jinja {

class Budget {
 public:
  explicit Budget(const Limits& limits)
      : limits_(limits), cpu_end_ms_(thread_cpu_ms() + limits.max_cpu_ms), steps_left_(limits.max_steps) {
    plan_check();
  }

  const Limits& limits() const { return limits_; }

  void steps(size_t count = 1) {
    steps_left_ -= static_cast<int64_t>(count);
    if (steps_left_ < next_check_) check();
  }

  // A string of `size` bytes is about to be made.
  void string(size_t size) {
    if (size > limits_.max_string_bytes) {
      fail_limit("a string of {} bytes; the limit is {}", size, limits_.max_string_bytes);
    }
    allocate(size);
    steps(size / 64);
  }

  // A list of `count` items is about to be made.
  void items(size_t count) {
    if (count > limits_.max_list_items) {
      fail_limit("a list of {} items; the limit is {}", count, limits_.max_list_items);
    }
    allocate(count * 48);
    steps(count);
  }

  // Checks `count * size` without overflow, then charges it as a string.
  void repeated_string(size_t size, uint64_t count) {
    if (size != 0 && count > limits_.max_string_bytes / size) {
      fail_limit("a string of {} x {} bytes; the limit is {}", count, size, limits_.max_string_bytes);
    }
    string(size * count);
  }

 private:
  static constexpr int64_t kStepsOfCheck = 4096;  // at most a millisecond, beside which the clock costs nothing

  static int64_t thread_cpu_ms() {
    timespec now{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<int64_t>(now.tv_sec) * 1000 + now.tv_nsec / 1'000'000;
  }

  void plan_check() { next_check_ = std::max<int64_t>(0, steps_left_ - kStepsOfCheck); }

  void check() {
    if (steps_left_ < 0) fail_limit("the template runs for more than {} steps", limits_.max_steps);
    if (thread_cpu_ms() > cpu_end_ms_) fail_limit("the template runs for more than {} ms", limits_.max_cpu_ms);
    plan_check();
  }

  void allocate(size_t size) {
    allocated_ += size;
    if (allocated_ > limits_.max_alloc_bytes) {
      fail_limit("the values of the template take more than {} bytes", limits_.max_alloc_bytes);
    }
  }

  const Limits& limits_;
  const int64_t cpu_end_ms_;
  int64_t steps_left_;
  int64_t next_check_ = 0;  // how many steps are left then
  size_t allocated_ = 0;
};

}  // namespace millrace::jinja
