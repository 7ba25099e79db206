// InboxWaker: a waker beside a socket. Its descriptor is written only while the receiver waits, so that waking a thread
// that is awake costs one exchange of an atomic.
//
// Owner: shared by its inbox and those that wake it. Thread safety: wake() from any thread, the rest from the
// receiver's.
#pragma once

#include <atomic>

#include "base/status.h"
#include "control/mailbox.h"

namespace millrace {

class InboxWaker final : public Waker {
 public:
  InboxWaker();
  ~InboxWaker() override;
  void wake() override;

  bool woken() const { return woken_.load(); }
  void take() {
    if (woken_.load(std::memory_order_relaxed)) woken_.store(false);
  }
  // From now on wake() makes fd() readable. False, and nothing begins, where it was woken already.
  bool begin_waiting();
  void end_waiting() { waiting_.store(false); }
  int fd() const { return fd_; }
  void drain();  // after fd() was readable

 private:
  std::atomic<bool> woken_{false};
  std::atomic<bool> waiting_{false};
  int fd_;
};

}  // namespace millrace
