#include "relay/spin.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace millrace {
namespace {

int64_t now_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

Spin::Spin() : alone_(std::thread::hardware_concurrency() < 2) {}

void Spin::happened() {
  if (waiting_since_us_ == 0) return;
  quick_ = now_us() - waiting_since_us_ <= kQuickUs;
  waiting_since_us_ = 0;
}

bool Spin::again() {
  if (alone_) return false;
  const int64_t now = now_us();
  if (waiting_since_us_ == 0) {
    waiting_since_us_ = now;
  }
  if (!quick_ || now < not_before_us_ || now - waiting_since_us_ > kSpinUs) return false;
  ::sched_yield();
  const int64_t back = now_us();
  if (back - now > kYieldUs) {
    not_before_us_ = back + pause_us_;
    pause_us_ = std::min(pause_us_ * 2, kCrowdedMaxUs);
  } else {
    pause_us_ = kCrowdedPauseUs;
  }
  return true;  // whatever came meanwhile is looked at before sleeping
}

}  // namespace millrace
