// PromptEncoding: the ids of one shared prompt, and the requests that wait for them. Its first request has one job
// queued; those that come while it is queued or runs wait for the same job, and those that come later find the ids. So
// the prompt is encoded once at most, and its requests get their ids in the order in which they came.
//
// Owner: its SharedPrompt (stages/prompt.h), and the jobs that run. Thread safety: all functions from any thread. At
// any time at most one job of a prompt is queued or runs.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/status.h"

namespace millrace {

class PromptEncoding {
 public:
  using Ids = std::vector<int32_t>;
  struct Waiter {
    std::function<void(Result<Ids>)> done;
    std::function<bool()> wanted;  // false: the request ended meanwhile; empty: it is wanted
  };

  // True: the caller must queue a job, which calls run() or refuse(); or take the waiter back with cancel().
  bool add(Waiter waiter) {
    const std::lock_guard lock(mutex_);
    waiters_.push_back(std::move(waiter));
    return !std::exchange(queued_, true);
  }
  // The job could not be queued: forgets the waiter of the add() that returned true, without a call. Those that came
  // after it, whose callers take them for queued, are returned for the caller to answer.
  std::vector<Waiter> cancel() {
    const std::lock_guard lock(mutex_);
    queued_ = false;
    std::vector<Waiter> later = std::exchange(waiters_, {});
    later.erase(later.begin());
    return later;
  }
  // The job: calls `encode` unless the ids are known or no waiter wants them, then every waiter, also those that come
  // meanwhile. A waiter that does not want them gets kCancelled.
  void run(const std::function<Result<Ids>()>& encode) {
    for (std::vector<Waiter> waiters = take(); !waiters.empty(); waiters = take()) {
      for (Waiter& waiter : waiters) {
        if (waiter.wanted && !waiter.wanted()) {
          waiter.done(Status(StatusCode::kCancelled, "the request ended before its prompt was encoded"));
          continue;
        }
        if (!ids_) ids_.emplace(encode());
        waiter.done(*ids_);
      }
    }
  }
  void refuse(const Status& status) {
    for (std::vector<Waiter> waiters = take(); !waiters.empty(); waiters = take()) {
      for (Waiter& waiter : waiters) waiter.done(status);
    }
  }

 private:
  // All that wait. None: the job is over, under the same lock, so that the next request queues another.
  std::vector<Waiter> take() {
    const std::lock_guard lock(mutex_);
    queued_ = !waiters_.empty();
    return std::exchange(waiters_, {});
  }

  std::mutex mutex_;
  std::vector<Waiter> waiters_;
  bool queued_ = false;
  std::optional<Result<Ids>> ids_;  // the job's alone: there is one at a time
};

}  // namespace millrace
