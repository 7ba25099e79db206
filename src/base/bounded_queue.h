// A bounded multi-producer multi-consumer queue between threads. push() never blocks: a full queue is reported
// to the producer, to be passed on as back-pressure, not hidden in a wait.
//
// Thread safety: all functions may be called from any thread. After close() nothing is accepted; what is queued still
// comes out.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

#include "base/status.h"

namespace millrace {

template <typename T>
class BoundedQueue {
 public:
  explicit BoundedQueue(std::size_t capacity) : capacity_(capacity) { CHECK(capacity >= 1); }

  // kResourceExhausted when full, kUnavailable after close(). The item is moved from only when the result is OK.
  Status push(T&& item) {
    {
      std::lock_guard lock(mutex_);
      if (closed_) return Status(StatusCode::kUnavailable, "the queue is closed");
      if (items_.size() >= capacity_) {
        return error(StatusCode::kResourceExhausted, "the queue is full: {} of {} places taken", items_.size(),
                     capacity_);
      }
      items_.push_back(std::move(item));
    }
    not_empty_.notify_one();
    return ok_status();
  }

  // The oldest item; waits up to timeout_ms (0: does not wait, negative: until there is one or the queue is closed).
  std::optional<T> pop(int timeout_ms) {
    std::unique_lock lock(mutex_);
    const auto ready = [this] { return closed_ || !items_.empty(); };
    if (timeout_ms < 0) {
      not_empty_.wait(lock, ready);
    } else if (timeout_ms > 0) {
      not_empty_.wait_for(lock, std::chrono::milliseconds(timeout_ms), ready);
    }
    if (items_.empty()) return std::nullopt;
    T item = std::move(items_.front());
    items_.pop_front();
    return item;
  }

  void close() {
    {
      std::lock_guard lock(mutex_);
      closed_ = true;
    }
    not_empty_.notify_all();
  }

  bool closed() const {
    std::lock_guard lock(mutex_);
    return closed_;
  }
  std::size_t size() const {
    std::lock_guard lock(mutex_);
    return items_.size();
  }

 private:
  const std::size_t capacity_;
  mutable std::mutex mutex_;
  std::condition_variable not_empty_;
  std::deque<T> items_;
  bool closed_ = false;
};

}  // namespace millrace
