// WaitingQueue: accepted requests that hold no pages yet, in the order of arrival, admitted with bounded skip-over.
//
// A request that does not fit now does not block the small ones behind it, and is not starved by them: at most
// `max_skips` later requests are admitted before any waiting one. When that many have passed, nobody behind it is
// admitted until it is; the running requests end, pages come free, and it fits. A request that was retracted goes back
// to its old place, because its arrival number never changes.
//
// Owner: the scheduler. Thread safety: none.
#pragma once

#include <cstdint>
#include <functional>
#include <map>

#include "scheduler/sequence.h"

namespace millrace {

inline constexpr int32_t kMaxSkips = 16;
inline constexpr int32_t kSkipWindow = 32;  // requests looked at in one pass: bounds the cost of a step

enum class Admission {
  kAdmitted,
  kNoRoom,  // this one does not fit now; a smaller one behind it may
  kStop,    // nobody fits: as many run as may run
};

class WaitingQueue {
 public:
  explicit WaitingQueue(int32_t max_skips) : max_skips_(max_skips) {}

  void push(Sequence& sequence);
  void remove(const Sequence& sequence);
  bool empty() const { return by_arrival_.empty(); }
  Sequence& front() { return *by_arrival_.begin()->second; }  // the queue must not be empty
  int32_t size() const { return static_cast<int32_t>(by_arrival_.size()); }

  // Offers the requests to `admit` in their order until it says kStop or the bounds above end the pass. Admitted ones
  // leave the queue. `admit` must not touch the queue.
  void offer(const std::function<Admission(Sequence&)>& admit);

 private:
  int32_t max_skips_;
  std::map<uint64_t, Sequence*> by_arrival_;
};

}  // namespace millrace
