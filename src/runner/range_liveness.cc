#include "runner/range_liveness.h"

#include <algorithm>

namespace millrace {

void RangeLiveness::look(Clock::time_point now) {
  using std::chrono::duration_cast, std::chrono::milliseconds;
  const int64_t passed = last_ ? duration_cast<milliseconds>(now - *last_).count() : 0;
  if (last_ && passed == 0) return;  // less than the unit: goes on counting from the last look
  last_ = now;
  for (std::optional<int64_t>& silent : silent_ms_) {
    if (silent) *silent += std::min<int64_t>(passed, kAliveCheckMs);
  }
}

std::optional<uint32_t> RangeLiveness::silent_over(int64_t limit_ms) const {
  for (std::size_t i = 0; i < silent_ms_.size(); ++i) {
    if (silent_ms_[i] && *silent_ms_[i] > limit_ms) return static_cast<uint32_t>(i);
  }
  return std::nullopt;
}

}  // namespace millrace
