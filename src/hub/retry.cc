#include "hub/retry.h"

#include <algorithm>
#include <thread>

namespace millrace::hub {
namespace {

constexpr std::chrono::milliseconds kCancelTick{50};  // how late a cancelled pause may end

bool pause_for(std::chrono::milliseconds time, const TransferControl& control) {
  const auto end = std::chrono::steady_clock::now() + time;
  while (!control.cancelled()) {
    const auto now = std::chrono::steady_clock::now();
    if (now >= end) return true;
    std::this_thread::sleep_for(std::min(kCancelTick, std::chrono::ceil<std::chrono::milliseconds>(end - now)));
  }
  return false;
}

}  // namespace

// A failure that would come again (a wrong token, a missing file) is returned at once: `again` is false for it.
Status with_retries(const RetryPolicy& policy, const TransferControl& control,
                    const std::function<Attempt()>& attempt) {
  std::chrono::milliseconds pause = policy.first_pause;
  for (int failures = 0;;) {
    const Attempt done = attempt();
    if (done.status.ok() || !done.again) return done.status;
    if (done.progress) failures = 0, pause = policy.first_pause;
    if (++failures >= policy.attempts) {
      return Status(done.status.code(), fmt::format("{}; {} attempts were made", done.status.message(), failures));
    }
    // The hub's Retry-After is a floor: to come earlier only costs one of the attempts. A time beyond the limit is the
    // user's to wait, not ours.
    const std::chrono::seconds asked(done.retry_after_s);
    if (asked > policy.longest_retry_after) {
      return Status(done.status.code(),
                    fmt::format("{}; it asks to wait {} s; wanted at most {} s: try again later", done.status.message(),
                                asked.count(), policy.longest_retry_after.count()));
    }
    const std::chrono::milliseconds time = std::max<std::chrono::milliseconds>(pause, asked);
    control.note(
        fmt::format("{}; trying again in {:.1f} s", done.status.message(), static_cast<double>(time.count()) / 1000));
    if (!pause_for(time, control)) return Status(StatusCode::kCancelled, "interrupted");
    pause = std::min(pause * 2, policy.longest_pause);
  }
}

}  // namespace millrace::hub
