#include "runner/chain_metrics.h"

#include <algorithm>
#include <string>

namespace millrace {

int64_t ChainMetrics::busy_us(Clock::time_point now) const {
  const auto since = busy_since_ ? now - *busy_since_ : Clock::duration::zero();
  return busy_us_ + std::chrono::duration_cast<std::chrono::microseconds>(since).count();
}

void ChainMetrics::add_sent(uint64_t row_bytes, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  ++parts_;
  row_bytes_ += row_bytes * (compute_us_.size() - 1);  // from each range to the next one
  if (!busy_since_) busy_since_ = now;
}

void ChainMetrics::add_back(std::span<const int64_t> compute_us, int64_t answer_us, uint64_t row_bytes,
                            std::size_t left, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < std::min(compute_us.size(), compute_us_.size()); ++i) compute_us_[i] += compute_us[i];
  compute_us_[0] += answer_us;
  row_bytes_ += row_bytes;
  if (left > 0) return;
  busy_us_ = busy_us(now);
  busy_since_.reset();
}

void ChainMetrics::add_break(Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  ++breaks_;
  busy_us_ = busy_us(now);
  busy_since_.reset();
}

std::vector<RunnerMetric> ChainMetrics::samples() const {
  const std::lock_guard lock(mutex_);
  const auto seconds = [](int64_t us) { return static_cast<double>(us) * 1e-6; };
  const int64_t busy = busy_us(Clock::now());
  std::vector<RunnerMetric> out = {{"chain_ranges", static_cast<double>(compute_us_.size())},
                                   {"chain_breaks_total", static_cast<double>(breaks_)},
                                   {"chain_parts_total", static_cast<double>(parts_)},
                                   {"chain_row_bytes_total", static_cast<double>(row_bytes_)},
                                   {"chain_busy_seconds_total", seconds(busy)}};
  for (std::size_t i = 0; i < compute_us_.size(); ++i) {
    const std::string label = "{range=" + std::to_string(i) + "}";
    const double idle = busy > 0 ? std::max(0.0, 1.0 - seconds(compute_us_[i]) / seconds(busy)) : 0.0;
    out.push_back({"range_compute_seconds_total" + label, seconds(compute_us_[i])});
    out.push_back({"range_idle_ratio" + label, idle});
  }
  return out;
}

}  // namespace millrace
