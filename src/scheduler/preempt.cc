// Preemption: with the priority policy, running requests of a much smaller priority give way to one that waits. They
// are retracted, so they keep their tokens and change no text; each gives way kMaxPreemptions times at most.
#include <algorithm>
#include <unordered_map>

#include "scheduler/scheduler.h"

namespace millrace {

// Those that would have to go so that `sequence` fits, the lowest priority and then the newest first; empty: it would
// not fit even then, or need not take anybody's place.
std::vector<Sequence*> Scheduler::preemption_victims(const Sequence& sequence) const {
  std::vector<Sequence*> victims;
  for (Sequence* other : running_) {
    const int64_t gap = int64_t{sequence.priority} - other->priority;
    if (gap > options_.priority_preemption_gap && other->preemptions < kMaxPreemptions) victims.push_back(other);
  }
  if (victims.empty()) return victims;
  std::ranges::sort(victims, [](const Sequence* a, const Sequence* b) {
    return a->priority != b->priority ? a->priority < b->priority : a->arrival > b->arrival;
  });
  std::unordered_map<int32_t, int32_t> users;  // of shared pages, which come free with the last
  int64_t reserved = 0;
  for (const Sequence* other : running_) {
    reserved += growth_estimate(*other);
    for (int32_t i = 0; i < other->shared_pages; ++i) ++users[other->pages[static_cast<std::size_t>(i)].value];
  }
  const int64_t needed = memory_.pages_for(sequence.length()) - std::max(0, sequence.matched) / memory_.page_size() +
                         growth_estimate(sequence);
  int64_t room = memory_.available() - reserved;
  auto places = static_cast<int64_t>(options_.max_running_requests) - static_cast<int64_t>(running_.size());
  for (std::size_t count = 0; count < victims.size(); ++count) {
    if (places > 0 && room >= needed) {
      victims.resize(count);
      return victims;
    }
    const Sequence& victim = *victims[count];
    ++places;
    room += growth_estimate(victim) + victim.pages.size() - victim.shared_pages;
    for (int32_t i = 0; i < victim.shared_pages; ++i) {
      if (--users[victim.pages[static_cast<std::size_t>(i)].value] == 0) ++room;
    }
  }
  if (places <= 0 || room < needed) victims.clear();
  return victims;
}

// Whether `sequence`, which waits, was admitted in the place of others. While a batch is in flight nobody can be taken
// out of it; then hold_back_ says that no batch is to be planned before it was settled.
bool Scheduler::preempt_for(Sequence& sequence) {
  if (options_.policy != Policy::kPriority || running_.empty()) return false;
  look_up(sequence);
  const std::vector<Sequence*> victims = preemption_victims(sequence);
  if (victims.empty()) return false;
  if (!in_flight_.empty()) {
    hold_back_ = true;
    return false;
  }
  for (Sequence* victim : victims) {
    ++victim->preemptions;
    ++counters_.preempted;
    retract(*victim);
  }
  int64_t reserved = 0;
  for (const Sequence* other : running_) reserved += growth_estimate(*other);
  sequence.deficit = 0;
  if (try_admit(sequence, reserved) != Admission::kAdmitted) return false;
  waiting_.take(sequence);
  return true;
}

}  // namespace millrace
