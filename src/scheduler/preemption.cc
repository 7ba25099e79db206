// Preemption: with the priority policy, running requests of a much smaller priority give way to one that waits. They
// are retracted, so they keep their tokens and change no text; each gives way kMaxPreemptions times at most.
#include <algorithm>

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
  // What is cached for it is locked meanwhile: those pages are not available for the ones that it lacks.
  SequenceMemory::Trial trial = memory_.begin_trial(sequence);
  const int64_t needed = trial.lacking + growth_estimate(sequence);
  int64_t reserved = growth_of_running();
  int64_t unshared = 0;  // pages of the victims
  auto places = int64_t{options_.max_running_requests} - requests_.running_count();
  const auto fits = [&] { return places > 0 && memory_.available() + unshared - reserved >= needed; };
  std::size_t count = 0;
  for (; count < victims.size() && !fits(); ++count) {
    const Sequence& victim = *victims[count];
    memory_.try_without(trial, victim);
    ++places;
    unshared += victim.pages.size() - victim.shared_pages;
    reserved -= growth_estimate(victim);
  }
  victims.resize(fits() ? count : 0);
  memory_.end_trial(trial);
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
