// Pages for decodes, and what happens when there are none: retraction.
#include <algorithm>

#include "scheduler/plan.h"

namespace millrace {

// Each decode needs KV memory for one more token. Where cached pages do not suffice, requests are retracted; but not
// while a batch is in flight: it may end some, and no sequence can be taken out of it.
BatchPlanner::DecodePages BatchPlanner::allocate_for_decodes(const WorkInFlight& work) {
  if (hold_back_ && work.any) return DecodePages::kWaitForSettle;
  hold_back_ = false;
  bool retracted = false;
  while (pages_lacking(work) > memory_.available()) {
    if (work.any) return DecodePages::kWaitForSettle;
    if (requests_.running_count() == 1) {
      if (memory_.revoke_leases()) continue;
      if (memory_.transferring()) return DecodePages::kWaitForSettle;
      break;  // grow() cannot fail: one that runs alone fits in the pool
    }
    requests_.retract(retraction_victim());
    retracted = true;
  }
  update_ratio(work, retracted);
  for (Sequence* sequence : requests_.running()) {
    if (needs_row(*sequence, work)) CHECK(memory_.grow(*sequence));
  }
  return retracted ? DecodePages::kRetracted : DecodePages::kReady;
}

int32_t BatchPlanner::pages_lacking(const WorkInFlight& work) const {
  int32_t pages = 0;
  for (const Sequence* sequence : requests_.running()) {
    if (needs_row(*sequence, work)) pages += memory_.pages_lacking(*sequence);
  }
  return pages;
}

void BatchPlanner::update_ratio(const WorkInFlight& work, bool retracted) {
  int64_t generated = 0;
  int64_t allowed = 0;
  bool decoded = false;
  for (const Sequence* sequence : requests_.running()) {
    generated += sequence->generated();
    allowed += sequence->sampling.max_tokens;
    decoded |= needs_row(*sequence, work) && sequence->remaining() == 1;
  }
  if (retracted) {
    ratio_.retracted(generated, allowed, requests_.running_count());
  } else if (decoded) {
    ratio_.step_went_well();
  }
}

// The one that loses least: the fewest generated tokens, then the longest prompt (it frees most), then the latest. The
// request that has generated most always stays, so one of them always gets to its end.
Sequence& BatchPlanner::retraction_victim() const {
  return **std::ranges::min_element(requests_.running(), [](const Sequence* a, const Sequence* b) {
    if (a->generated() != b->generated()) return a->generated() < b->generated();
    if (a->length() != b->length()) return a->length() > b->length();
    return a->arrival > b->arrival;
  });
}

}  // namespace millrace
