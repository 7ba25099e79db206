// StepCost: how long a step of so many rows will take, learnt from the steps that came back.
//
// The model is time = fixed + per_row * rows: reading the weights costs the same for any batch, and each row some
// arithmetic of its own. The two numbers are the least-squares line through the past steps, where a step of age n
// counts kForget^n (the normal equations with exponential forgetting; e.g. Haykin, Adaptive Filter Theory, chapter on
// RLS), so about the last 1 / (1 - kForget) steps matter and a machine that becomes slower is believed after a few of
// them. Where all of them had the same number of rows a line cannot be told from its slope; then the whole time is
// taken to be the rows', which errs on the side of short steps until a step of another size teaches better.
//
// No clock in here: the times come with the results. Owner: the Scheduler. Thread safety: none.
#pragma once

#include <algorithm>
#include <cstdint>

namespace millrace {

class StepCost {
 public:
  static constexpr double kForget = 0.95;
  static constexpr double kMinSpread = 0.5;  // the variance of the row counts below which there is no slope

  void observe(int32_t rows, int64_t compute_us) {
    if (rows <= 0 || compute_us < 0) return;
    const double r = rows;
    const double t = static_cast<double>(compute_us);
    weight_ = weight_ * kForget + 1;
    sum_r_ = sum_r_ * kForget + r;
    sum_t_ = sum_t_ * kForget + t;
    sum_rr_ = sum_rr_ * kForget + r * r;
    sum_rt_ = sum_rt_ * kForget + r * t;
  }

  bool known() const { return weight_ > 0; }
  double per_row_us() const {
    if (!known()) return 0;
    const double mean_r = sum_r_ / weight_;
    const double mean_t = sum_t_ / weight_;
    const double spread = sum_rr_ / weight_ - mean_r * mean_r;
    const double proportional = mean_t / mean_r;
    if (spread < kMinSpread) return proportional;
    // A line with a negative start or slope is noise.
    return std::clamp((sum_rt_ / weight_ - mean_r * mean_t) / spread, 0.0, proportional);
  }
  double fixed_us() const { return known() ? sum_t_ / weight_ - per_row_us() * sum_r_ / weight_ : 0; }
  double predict_us(int32_t rows) const { return fixed_us() + per_row_us() * rows; }

  // The most rows of a step that is expected to take at most `us`; `most` when nothing is known yet, or rows cost
  // nothing.
  int32_t rows_within(int64_t us, int32_t most) const {
    const double per_row = per_row_us();
    if (!known() || per_row <= 0) return most;
    const double rows = (static_cast<double>(us) - fixed_us()) / per_row;
    return rows <= 0 ? 0 : rows >= most ? most : static_cast<int32_t>(rows);
  }

 private:
  double weight_ = 0, sum_r_ = 0, sum_t_ = 0, sum_rr_ = 0, sum_rt_ = 0;
};

}  // namespace millrace
