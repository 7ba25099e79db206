// Deadlines: which live requests have a time limit, the next one first. O(log n) for each change, O(1) to see that none
// has passed. A request is in here at most twice, by its deadline_us and its queue_deadline_us.
// Owner: the scheduler. Thread safety: none.
#pragma once

#include <cstdint>
#include <set>
#include <tuple>

#include "scheduler/sequence.h"

namespace millrace {

class Deadlines {
 public:
  void add(Sequence& sequence) {
    for (int64_t us : {sequence.deadline_us, sequence.queue_deadline_us}) {
      if (us != kNoDeadline) by_time_.emplace(us, sequence.arrival, &sequence);
    }
  }
  void remove(Sequence& sequence) {
    admitted(sequence);
    by_time_.erase({sequence.deadline_us, sequence.arrival, &sequence});
    sequence.deadline_us = kNoDeadline;
  }
  // It waits no longer for its first step.
  void admitted(Sequence& sequence) {
    if (sequence.queue_deadline_us == kNoDeadline) return;
    if (sequence.queue_deadline_us != sequence.deadline_us) {
      by_time_.erase({sequence.queue_deadline_us, sequence.arrival, &sequence});
    }
    sequence.queue_deadline_us = kNoDeadline;
  }
  // One whose time is over; nullptr: none.
  Sequence* expired(int64_t now_us) const {
    if (by_time_.empty() || std::get<0>(*by_time_.begin()) > now_us) return nullptr;
    return std::get<2>(*by_time_.begin());
  }
  std::size_t size() const { return by_time_.size(); }

 private:
  std::set<std::tuple<int64_t, uint64_t, Sequence*>> by_time_;
};

}  // namespace millrace
