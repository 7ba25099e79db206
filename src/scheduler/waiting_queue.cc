#include "scheduler/waiting_queue.h"

#include <algorithm>
#include <vector>

#include "base/status.h"

namespace millrace {

void WaitingQueue::push(Sequence& sequence) {
  const bool is_new = by_arrival_.emplace(sequence.arrival, &sequence).second;
  CHECK(is_new);
}

void WaitingQueue::remove(const Sequence& sequence) { CHECK(by_arrival_.erase(sequence.arrival) == 1); }

void WaitingQueue::offer(const std::function<Admission(Sequence&)>& admit) {
  std::vector<Sequence*> passed;
  int32_t looked_at = 0;
  for (auto it = by_arrival_.begin(); it != by_arrival_.end() && looked_at < kSkipWindow; ++looked_at) {
    // Whoever was passed `max_skips` times holds up all behind it. The check stands before the offer, because the pass
    // itself may have used up the last skip.
    const bool barrier = std::any_of(passed.begin(), passed.end(), [&](Sequence* s) { return s->skips >= max_skips_; });
    if (barrier) return;
    Sequence& sequence = *it->second;
    const Admission answer = admit(sequence);
    if (answer == Admission::kStop) return;
    if (answer == Admission::kNoRoom) {
      passed.push_back(&sequence);
      ++it;
      continue;
    }
    it = by_arrival_.erase(it);
    for (Sequence* earlier : passed) ++earlier->skips;
  }
}

}  // namespace millrace
