// NewTokenRatio: which part of its allowed new tokens a running request is expected to still use. Admission reserves
// room for that part. Too high and the machine idles; too low and requests are retracted. So it starts careful, falls
// with every step that went well, and jumps up when a retraction shows that it was too low.
//
// The numbers are those that users of SGLang know (facts: 0.7, factor 0.14, 600 steps, 20 tokens after a retraction).
// Owner: the BatchPlanner. Thread safety: none.
#pragma once

#include <algorithm>
#include <cstdint>

namespace millrace {

class NewTokenRatio {
 public:
  static constexpr double kInitial = 0.7;
  static constexpr double kMinimumFactor = 0.14;
  static constexpr int32_t kDecaySteps = 600;
  static constexpr int32_t kTokensAfterRetraction = 20;

  // `conservativeness` scales where the ratio starts: 0 = admit whatever fits now, 1 = the default.
  explicit NewTokenRatio(double conservativeness)
      : initial_(std::min(1.0, kInitial * conservativeness)), value_(initial_) {}

  double value() const { return value_; }
  void reset() { value_ = initial_; }
  void step_went_well() {
    const double minimum = initial_ * kMinimumFactor;
    value_ = std::max(minimum, value_ - (initial_ - minimum) / kDecaySteps);
  }

  // After a retraction: what the `count` remaining requests have used of what they may use, and a little more.
  void retracted(int64_t generated, int64_t max_new, int64_t count) {
    const double used = static_cast<double>(generated + kTokensAfterRetraction * count);
    value_ = std::clamp(used / static_cast<double>(max_new + 1), value_, 1.0);
  }

 private:
  double initial_;
  double value_;
};

}  // namespace millrace
