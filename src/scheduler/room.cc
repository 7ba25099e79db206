// Room for decodes, and what happens when there is none: retraction.
#include <algorithm>

#include "scheduler/scheduler.h"
#include "scheduler/stop.h"

namespace millrace {

// Whether there is anything to compute for it in the next batch.
bool Scheduler::needs_row(const Sequence& sequence) const {
  return sequence.remaining() > 0 && !ends_in_flight(sequence, model_.context_length);
}

// Each decode needs a place for one more token. Where cached pages do not suffice, requests are retracted; but not
// while a batch is in flight: it may end some, and nobody can be taken out of it.
Scheduler::Room Scheduler::make_room_for_decodes(Deltas& out) {
  if (hold_back_ && !in_flight_.empty()) return Room::kWaitForSettle;
  hold_back_ = false;
  bool retracted = false;
  const auto lacking = [this] {
    int32_t pages = 0;
    for (const Sequence* sequence : running_) {
      if (needs_row(*sequence)) pages += memory_.pages_lacking(*sequence);
    }
    return pages;
  };
  while (lacking() > memory_.available()) {
    if (!in_flight_.empty()) return Room::kWaitForSettle;
    if (running_.size() == 1) {
      end_too_long(*running_.front(), out);
      break;
    }
    retract(*retraction_victim());
    retracted = true;
  }
  int64_t generated = 0;
  int64_t allowed = 0;
  bool decoded = false;
  for (Sequence* sequence : running_) {
    generated += sequence->generated();
    allowed += sequence->sampling.max_tokens;
    if (!needs_row(*sequence)) continue;
    const TreeMark before = mark_tree();
    CHECK(memory_.grow(*sequence));
    note_tree(before);
    decoded |= sequence->remaining() == 1;
  }
  if (retracted) {
    ratio_.retracted(generated, allowed, static_cast<int64_t>(running_.size()));
  } else if (decoded) {
    ratio_.step_went_well();
  }
  return retracted ? Room::kRetracted : Room::kMade;
}

// The one that loses least: the fewest generated tokens, then the longest prompt (it frees most), then the latest. The
// request that has generated most always stays, so somebody always gets to an end.
Sequence* Scheduler::retraction_victim() const {
  return *std::ranges::min_element(running_, [](const Sequence* a, const Sequence* b) {
    if (a->generated() != b->generated()) return a->generated() < b->generated();
    if (a->length() != b->length()) return a->length() > b->length();
    return a->arrival > b->arrival;
  });
}

// Back to its place in the queue with all its tokens. What it computed goes to the tree, from which it is evicted last
// pages first, and only as far as needed; so much less is left to compute again.
void Scheduler::retract(Sequence& sequence) {
  CHECK(sequence.batches == 0 && sequence.pending == 0);
  let_go(sequence);
  std::erase(running_, &sequence);
  waiting_.push(sequence);
  ++sequence.retractions;
  ++counters_.retractions;
}

// Not kResourceExhausted: to try again later would be in vain.
void Scheduler::end_too_long(Sequence& sequence, Deltas& out) {
  const Status status = error(
      StatusCode::kTooLarge, "the request has {} tokens and needs {} KV pages of {} tokens to go on; the pool has {}",
      sequence.length(), memory_.pages_for(sequence.length()), memory_.page_size(), model_.page_count);
  finish(sequence, error_finish(status), out);
}

}  // namespace millrace
