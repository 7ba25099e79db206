// Preemption: with the priority policy, running requests of a much smaller priority give way to one that waits. They
// are retracted, so they keep their tokens and change no text; each gives way kMaxPreemptions times at most.
#include <algorithm>
#include <unordered_map>

#include "scheduler/admission.h"

namespace millrace {

// Those that would have to go so that `sequence` fits, the lowest priority and then the newest first; empty: it would
// not fit even then, or need not replace one that runs.
std::vector<Sequence*> AdmissionControl::preemption_victims(const Sequence& sequence) const {
  std::vector<Sequence*> victims;
  for (Sequence* other : requests_.running()) {
    const int64_t gap = int64_t{sequence.priority} - other->priority;
    if (gap > options_.priority_preemption_gap && other->preemptions < kMaxPreemptions) victims.push_back(other);
  }
  if (victims.empty()) return victims;
  std::ranges::sort(victims, [](const Sequence* a, const Sequence* b) {
    return a->priority != b->priority ? a->priority < b->priority : a->arrival > b->arrival;
  });
  std::unordered_map<int32_t, int32_t> users;  // of shared pages, which come free with the last
  int64_t reserved = 0;
  for (const Sequence* other : requests_.running()) {
    reserved += growth_estimate(*other);
    for (int32_t i = 0; i < other->shared_pages; ++i) ++users[other->pages[static_cast<std::size_t>(i)].value];
  }
  const int64_t needed = memory_.pages_for(sequence.length()) -
                         std::max(0, sequence.look.matched) / memory_.page_size() + growth_estimate(sequence);
  int64_t room = memory_.available() - reserved;
  auto places = int64_t{options_.max_running_requests} - requests_.running_count();
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

// Whether `sequence`, which waits, was admitted in the place of others. While a batch is in flight no sequence can be
// taken out of it.
bool AdmissionControl::preempt_for(Sequence& sequence, bool in_flight, Outcome& outcome) {
  if (options_.policy != Policy::kPriority || requests_.running_count() == 0) return false;
  look_up(sequence);
  const std::vector<Sequence*> victims = preemption_victims(sequence);
  if (victims.empty()) return false;
  if (in_flight) {
    outcome.hold_back = true;
    return false;
  }
  for (Sequence* victim : victims) {
    ++victim->preemptions;
    ++counters_.preempted;
    requests_.retract(*victim);
  }
  int64_t reserved = growth_of_running();
  sequence.look.deficit = 0;
  if (try_admit(sequence, reserved) != Admission::kAdmitted) return false;
  requests_.waiting().take(sequence);
  return true;
}

}  // namespace millrace
