#include "scheduler/waiting_queue.h"

#include <algorithm>

#include "base/status.h"

namespace millrace {

void WaitingQueue::push(Sequence& sequence) {
  sequence.queue.rank = policy_rank(policy_, sequence, seed_);
  const bool is_new = by_rank_.emplace(rank_of(sequence), &sequence).second;
  CHECK(is_new);
  CHECK(by_arrival_.emplace(sequence.arrival, &sequence).second);
}

void WaitingQueue::remove(const Sequence& sequence) {
  CHECK(by_rank_.erase(rank_of(sequence)) == 1);
  CHECK(by_arrival_.erase(sequence.arrival) == 1);
}

Sequence* WaitingQueue::worst() const {
  for (auto it = by_rank_.rbegin(); it != by_rank_.rend(); ++it) {
    if (!it->second->cached) return it->second;
  }
  return nullptr;
}

std::vector<const Sequence*> WaitingQueue::oldest(std::size_t count) const {
  std::vector<const Sequence*> out;
  for (const auto& [arrival, sequence] : by_arrival_) {
    if (out.size() >= count) break;
    out.push_back(sequence);
  }
  return out;
}

// The first of the policy's order. kSkipWindow are looked at; one more stands in for an oldest one among them that is
// offered its place before its turn.
std::vector<Sequence*> WaitingQueue::candidates(const Look& look) const {
  std::vector<Sequence*> order;
  const auto take = [&](const auto& map, int32_t count) {
    for (auto it = map.begin(); it != map.end() && count > 0; ++it, --count) order.push_back(it->second);
  };
  if (!looks_at_cache(policy_) || !look) {
    take(by_rank_, kSkipWindow + 1);
    return order;
  }
  take(by_arrival_, kOrderWindow);
  for (Sequence* sequence : order) look(*sequence);
  policy_ == Policy::kLpm ? order_by_match(order) : order_depth_first(order);
  order.resize(std::min(order.size(), static_cast<std::size_t>(kSkipWindow) + 1));
  return order;
}

void WaitingQueue::offer(const Admit& admit, const Look& look) {
  if (empty()) return;
  const std::vector<Sequence*> order = candidates(look);
  std::vector<const Sequence*> early;  // were offered their place before their turn
  std::vector<Sequence*> passed;       // did not fit in this pass
  auto next = order.begin();
  for (int32_t looked_at = 0; looked_at < kSkipWindow && !empty(); ++looked_at) {
    // Whoever was passed `max_skips` times holds up all behind it. The check stands before the offer, because the pass
    // itself may have used up the last skip.
    const bool barrier = std::ranges::any_of(passed, [&](const Sequence* s) { return s->queue.skips >= max_skips_; });
    if (barrier) return;
    Sequence* sequence = &oldest();
    const auto among = [](const auto& list, const Sequence* s) { return std::ranges::count(list, s) > 0; };
    bool overdue = sequence->queue.overtaken >= max_skips_;
    if (overdue && among(passed, sequence)) return;
    overdue = overdue && !among(early, sequence) && std::find(order.begin(), next, sequence) == next;
    if (overdue) {
      early.push_back(sequence);
    } else {
      while (next != order.end() && among(early, *next)) ++next;
      if (next == order.end()) return;
      sequence = *next++;
    }
    switch (admit(*sequence)) {
      case Admission::kStop:
        return;
      case Admission::kDeferred:
        break;
      case Admission::kNoRoom:
        passed.push_back(sequence);
        break;
      case Admission::kAdmitted:
        remove(*sequence);
        admitted(*sequence, passed);
        break;
    }
  }
}

// Counts whom the admission of `sequence` left behind.
void WaitingQueue::admitted(Sequence& sequence, const std::vector<Sequence*>& passed) {
  sequence.queue.overtaken = 0;
  for (Sequence* earlier : passed) ++earlier->queue.skips;
  if (!empty() && oldest().arrival < sequence.arrival) ++oldest().queue.overtaken;
}

}  // namespace millrace
