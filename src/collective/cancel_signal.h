// CancelSignal: ends every wait of a process group from another thread. WaitLimit: what bounds one wait.
//
// Owner: shared by the canceller and the group that waits. It stays cancelled.
// Thread safety: CancelSignal: any thread. WaitLimit: values.
#pragma once

#include <atomic>
#include <chrono>
#include <vector>

#include "base/status.h"

namespace millrace::collective {

using Clock = std::chrono::steady_clock;

class CancelSignal {
 public:
  CancelSignal();
  ~CancelSignal();
  CancelSignal(const CancelSignal&) = delete;
  CancelSignal& operator=(const CancelSignal&) = delete;

  void cancel();
  bool cancelled() const { return cancelled_.load(std::memory_order_acquire); }
  int fd() const { return fd_; }  // readable once cancelled

 private:
  std::atomic<bool> cancelled_{false};
  int fd_ = -1;
};

struct WaitLimit {
  Clock::time_point deadline;
  const CancelSignal* cancel = nullptr;

  // kDeadline or kCancelled where the wait is over.
  Status check() const;
  // The same, ending after `duration` at the latest.
  WaitLimit at_most(std::chrono::milliseconds duration) const;
};

// Waits until poll() finds one of `events` on one of `fds`. kDeadline, kCancelled.
Status wait_for_any(const std::vector<int>& fds, short events, const WaitLimit& limit);
Status wait_for(int fd, short events, const WaitLimit& limit);
// Waits for `duration`, or until the limit ends the wait.
Status pause_for(std::chrono::milliseconds duration, const WaitLimit& limit);

}  // namespace millrace::collective
