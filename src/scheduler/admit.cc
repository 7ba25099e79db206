// Admission: who of the waiting gets pages now.
#include <algorithm>
#include <cmath>
#include <utility>

#include "scheduler/scheduler.h"

namespace millrace {

void Scheduler::admit(Deltas& out) {
  if (waiting_.empty()) return;
  // Everybody needs a place and at least one page. (With the priority policy a place can be made.)
  const bool full = static_cast<int32_t>(running_.size()) >= options_.max_running_requests ||
                    (memory_.available() < 1 && !running_.empty());
  if (full && options_.policy != Policy::kPriority) return;
  refused_ = nullptr;
  int64_t reserved = 0;  // pages that the running requests are expected to take yet
  for (const Sequence* sequence : running_) reserved += growth_estimate(*sequence);
  waiting_.offer([&](Sequence& sequence) { return try_admit(sequence, reserved); },
                 [this](Sequence& sequence) { look_up(sequence); });
  if (refused_ == nullptr) return;
  if (preempt_for(*refused_)) return;
  // Nothing runs, nothing keeps pages, and it does not fit: it grew, was retracted, and no longer fits even alone.
  if (running_.empty() && in_flight_.empty()) end_too_long(*refused_, out);
}

Admission Scheduler::try_admit(Sequence& sequence, int64_t& reserved) {
  const auto refuse = [&](Admission answer) {
    if (refused_ == nullptr) refused_ = &sequence;
    return answer;
  };
  if (static_cast<int32_t>(running_.size()) >= options_.max_running_requests) return refuse(Admission::kStop);
  const int64_t room = room_for(sequence, reserved);
  // It is not matched anew before what has come free, or into the tree, might suffice. (A page that was published since
  // is one that it may no longer lack.)
  const int64_t gained =
      room - sequence.refused_room + static_cast<int64_t>(published_pages_ - sequence.refused_published);
  if (sequence.deficit > 0 && gained < sequence.deficit && !running_.empty()) return refuse(Admission::kNoRoom);

  look_up(sequence);
  if (is_being_computed(sequence)) {
    ++sequence.deferred;
    if (!std::exchange(sequence.ever_deferred, true)) ++counters_.deferred;
    return Admission::kDeferred;
  }
  const TreeMark before = mark_tree();
  const int64_t reserve = running_.empty() ? 0 : reserved + growth_estimate(sequence);
  const bool attached = memory_.attach(sequence, weight_version_.value_or(0), reserve);
  note_tree(before);
  if (!attached) {
    const int64_t lacking = memory_.pages_for(sequence.length()) - sequence.matched / memory_.page_size();
    sequence.deficit = static_cast<int32_t>(std::max<int64_t>(1, lacking - room));
    sequence.refused_room = room;
    sequence.refused_published = published_pages_;
    return refuse(Admission::kNoRoom);
  }
  reserved += growth_estimate(sequence);
  start(sequence);
  return Admission::kAdmitted;
}

// Pages that it could have now. Whoever runs alone may use the whole pool, whatever the estimate says: so the queue
// always moves.
int64_t Scheduler::room_for(const Sequence& sequence, int64_t reserved) const {
  return memory_.available() - (running_.empty() ? 0 : reserved + growth_estimate(sequence));
}

// It has its pages: from now on it runs.
void Scheduler::start(Sequence& sequence) {
  sequence.scheduled = sequence.computed;
  sequence.prefill_end = sequence.length();
  sequence.deficit = 0;
  sequence.deferred = 0;
  const auto place = std::ranges::upper_bound(running_, sequence.arrival, {}, &Sequence::arrival);
  running_.insert(place, &sequence);
  deadlines_.admitted(sequence);
  if (sequence.cached) return;  // it was here before
  sequence.cached = std::min(sequence.computed, sequence.prompt_length);
  sequence.cached_from_host = std::min(sequence.host_tokens, *sequence.cached);
  sequence.queue_us = std::max<int64_t>(0, options_.now_us() - sequence.accepted_us);
  ++counters_.admitted;
  counters_.queue_us += static_cast<uint64_t>(sequence.queue_us);
  counters_.prompt_tokens += static_cast<uint64_t>(sequence.prompt_length);
  counters_.cached_tokens += static_cast<uint64_t>(*sequence.cached);
  counters_.host_tokens += static_cast<uint64_t>(sequence.cached_from_host);
}

void Scheduler::look_up(Sequence& sequence) {
  if (sequence.matched_tree == tree_changes_) return;
  ++counters_.look_ups;
  const int32_t matched = memory_.cached_tokens(sequence, weight_version_.value_or(0));
  if (matched > sequence.matched) sequence.deferred = 0;
  sequence.matched = matched;
  sequence.matched_tree = tree_changes_;
}

// Whether a running request is about to publish the very page that this one would have to compute next.
bool Scheduler::is_being_computed(const Sequence& sequence) const {
  const int32_t begin = sequence.matched;
  const int32_t end = begin + memory_.page_size();
  if (!options_.prefix_cache || end > std::min(sequence.match_limit, sequence.length() - 1)) return false;
  if (sequence.deferred >= kMaxDeferredPasses) return false;
  return std::ranges::any_of(running_, [&](const Sequence* other) {
    const bool other_weights = other->computed > 0 && other->weight_version != weight_version_.value_or(0);
    if (!other->publishable || other_weights) return false;
    if (other->prefill_end < end || other->shared_pages * memory_.page_size() >= end) return false;
    // The page itself first: that is where two prompts with a common prefix differ.
    const auto equal = [&](int32_t from, int32_t to) {
      return std::equal(sequence.tokens.begin() + from, sequence.tokens.begin() + to, other->tokens.begin() + from);
    };
    return equal(begin, end) && other->extra_key == sequence.extra_key && equal(0, begin);
  });
}

// Pages that a request is expected to need beyond those for its tokens of now.
int32_t Scheduler::growth_estimate(const Sequence& sequence) const {
  const int32_t left = std::max(0, std::min({sequence.sampling.max_tokens - sequence.drawn(),
                                             model_.context_length - sequence.length(), kMaxNewTokensEstimate}));
  const auto expected = static_cast<int32_t>(std::ceil(left * ratio_.value()));
  return memory_.pages_for(int64_t{sequence.length()} + expected) - memory_.pages_for(sequence.length());
}

}  // namespace millrace
