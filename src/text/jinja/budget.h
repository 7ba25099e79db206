// What one render may still spend. Every loop that data drives charges it, so no template runs or grows without end.
//
// Thread safety: one render, one thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "text/jinja/error.h"
#include "text/jinja/limits.h"

namespace millrace::jinja {

class Budget {
 public:
  explicit Budget(const Limits& limits) : limits_(limits), steps_left_(limits.max_steps) {}

  const Limits& limits() const { return limits_; }

  void steps(size_t count = 1) {
    steps_left_ -= static_cast<int64_t>(count);
    if (steps_left_ < 0) fail_limit("the template runs for more than {} steps", limits_.max_steps);
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
  void allocate(size_t size) {
    allocated_ += size;
    if (allocated_ > limits_.max_alloc_bytes) {
      fail_limit("the values of the template take more than {} bytes", limits_.max_alloc_bytes);
    }
  }

  const Limits& limits_;
  int64_t steps_left_;
  size_t allocated_ = 0;
};

}  // namespace millrace::jinja
