// Ending: the request to a thread that it ends, and the pauses that it cuts short.
//
// Owner: the object that has the thread, for as long as it runs. Thread safety: all functions from any thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace millrace {

class Ending {
 public:
  void request() {
    {
      const std::lock_guard lock(mutex_);
      requested_ = true;
    }
    changed_.notify_all();
  }
  bool requested() const {
    const std::lock_guard lock(mutex_);
    return requested_;
  }
  // False: it was requested before the time was over.
  bool pause(int ms) {
    std::unique_lock lock(mutex_);
    return !changed_.wait_for(lock, std::chrono::milliseconds(ms), [this] { return requested_; });
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool requested_ = false;  // guarded by mutex_
};

}  // namespace millrace
