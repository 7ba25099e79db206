// Spin: how a relay's thread waits before it sleeps. Waking a sleeper costs 3 to 90 us, which is more than the answer
// to a small get takes; so while events come quickly, a thread that has nothing to do looks again for a short time.
//
//   spin.happened();                after a turn that found something
//   if (spin.again()) look once more, without waiting;  else sleep
//
// It costs nothing to threads with a better use for the processor:
//   - Only where the last wait was short (kQuickUs) does the next one begin with spinning, so an idle thread, or one
//     that gets an event now and then, sleeps at once.
//   - Between two looks others run (sched_yield). Where another thread does, the processor is wanted: no spinning for
//     kCrowdedPauseUs, doubled up to kCrowdedMaxUs while it stays so.
//   - With one processor there is none.
//
// Owner: the loop of the thread that waits, which alone calls it.
#pragma once

#include <cstdint>

namespace millrace {

inline constexpr int64_t kSpinUs = 150;   // looking, at most, after the last event
inline constexpr int64_t kQuickUs = 250;  // a wait so short would have been better spent looking
inline constexpr int64_t kYieldUs = 20;   // a look and a yield that take longer: another thread ran
inline constexpr int64_t kCrowdedPauseUs = 1'000;
inline constexpr int64_t kCrowdedMaxUs = 64'000;

class Spin {
 public:
  Spin();
  void happened();  // also ends the wait
  bool again();

 private:
  const bool alone_;              // one processor
  int64_t waiting_since_us_ = 0;  // 0: not waiting
  int64_t not_before_us_ = 0;
  int64_t pause_us_ = kCrowdedPauseUs;
  bool quick_ = false;  // the last wait was short
};

}  // namespace millrace
