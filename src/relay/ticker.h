// Ticker: a thread that does a relay's timed work: deadlines, leases, liveness.
//
// It calls tick() at the start, after each wake(), and when the ms that the last tick() returned are over (negative:
// not before the next wake()). Thread safety: wake() from any thread; stop() by the owner, not from inside tick(), and
// after it tick() does not run any more.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>

#include "base/status.h"

namespace millrace {

class Ticker {
 public:
  explicit Ticker(std::function<int64_t()> tick) : tick_(std::move(tick)), thread_([this] { run(); }) {}
  ~Ticker() { stop(); }
  Ticker(const Ticker&) = delete;
  Ticker& operator=(const Ticker&) = delete;

  void wake() {
    {
      std::lock_guard lock(mutex_);
      woken_ = true;
    }
    wake_.notify_one();
  }
  void stop() {
    CHECK(std::this_thread::get_id() != thread_.get_id());
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_one();
    if (thread_.joinable()) thread_.join();
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (!stopping_) {
      woken_ = false;
      lock.unlock();
      const int64_t wait_ms = tick_();
      lock.lock();
      const auto due = [this] { return stopping_ || woken_; };
      if (wait_ms < 0) {
        wake_.wait(lock, due);
      } else {
        wake_.wait_for(lock, std::chrono::milliseconds(wait_ms), due);
      }
    }
  }

  const std::function<int64_t()> tick_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool woken_ = false;
  bool stopping_ = false;
  std::thread thread_;  // the last member: it uses the others
};

}  // namespace millrace
