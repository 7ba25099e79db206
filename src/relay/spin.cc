#include "relay/spin.h"

#include <sched.h>

#include <algorithm>
#include <thread>

#include "base/clock.h"

namespace millrace {

Spin::Spin() : alone_(std::thread::hardware_concurrency() < 2) {}

void Spin::happened() {
  // It did not wait: a turn that found something at once shows nothing about the length of waits.
  if (waiting_since_us_ == 0) return;
  quick_ = monotonic_us() - waiting_since_us_ <= kQuickUs;
  waiting_since_us_ = 0;
}

bool Spin::again() {
  if (alone_) return false;
  const int64_t now = monotonic_us();
  // The first look of this wait.
  if (waiting_since_us_ == 0) {
    waiting_since_us_ = now;
  }
  if (!quick_ || now < not_before_us_ || now - waiting_since_us_ > kSpinUs) return false;
  // sched_yield(2): with no other thread that wants this processor it returns at once, within kYieldUs.
  ::sched_yield();
  const int64_t back = monotonic_us();
  if (back - now > kYieldUs) {
    not_before_us_ = back + pause_us_;
    pause_us_ = std::min(pause_us_ * 2, kCrowdedMaxUs);
  } else {
    pause_us_ = kCrowdedPauseUs;
  }
  return true;  // whatever came meanwhile is looked at before sleeping
}

}  // namespace millrace
