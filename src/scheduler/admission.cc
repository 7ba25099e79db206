#include "scheduler/admission.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace millrace {

AdmissionControl::Outcome AdmissionControl::admit(bool in_flight) {
  Outcome outcome;
  if (requests_.waiting().empty()) return outcome;
  // A request needs one of max_running_requests and a page at least. (With the priority policy others may give way.)
  const bool full = requests_.running_count() >= options_.max_running_requests ||
                    (memory_.available() < 1 && requests_.running_count() > 0);
  if (full && options_.policy != Policy::kPriority) return outcome;
  refused_ = nullptr;
  int64_t reserved = growth_of_running();
  requests_.waiting().offer([&](Sequence& sequence) { return try_admit(sequence, reserved); },
                            [this](Sequence& sequence) { look_up(sequence); });
  outcome.refused = refused_ != nullptr && !preempt_for(*refused_, in_flight, outcome);
  return outcome;
}

Admission AdmissionControl::try_admit(Sequence& sequence, int64_t& reserved) {
  const auto refuse = [&](Admission answer) {
    if (refused_ == nullptr) refused_ = &sequence;
    return answer;
  };
  if (requests_.running_count() >= options_.max_running_requests) return refuse(Admission::kStop);
  const bool alone = requests_.running_count() == 0;
  const int64_t within_reach = pages_within_reach(sequence, reserved);
  // It is not matched anew before what has come free, or into the tree, might suffice. (A page that was published since
  // is one that it may no longer lack.)
  const int64_t gained = within_reach - sequence.look.refused_pages +
                         static_cast<int64_t>(memory_.published_pages() - sequence.look.refused_published);
  if (sequence.look.deficit > 0 && gained < sequence.look.deficit && !alone) return refuse(Admission::kNoRoom);

  look_up(sequence);
  if (is_being_computed(sequence)) {
    ++sequence.look.deferred;
    if (!std::exchange(sequence.look.ever_deferred, true)) ++counters_.deferred;
    return Admission::kDeferred;
  }
  const int64_t reserve = alone ? 0 : reserved + growth_estimate(sequence);
  // One that runs alone may use all of the pool: nothing is kept for other schedulers then.
  if (!memory_.attach(sequence, reserve) && !(alone && memory_.revoke_leases() && memory_.attach(sequence, reserve))) {
    const int64_t lacking = memory_.pages_for(sequence.length()) - sequence.look.matched / memory_.page_size();
    sequence.look.deficit = static_cast<int32_t>(std::max<int64_t>(1, lacking - within_reach));
    sequence.look.refused_pages = within_reach;
    sequence.look.refused_published = memory_.published_pages();
    return refuse(Admission::kNoRoom);
  }
  reserved += growth_estimate(sequence);
  start(sequence);
  return Admission::kAdmitted;
}

// Pages that it could have now. Whoever runs alone may use the whole pool, whatever the estimate says: so the queue
// always moves.
int64_t AdmissionControl::pages_within_reach(const Sequence& sequence, int64_t reserved) const {
  const bool alone = requests_.running_count() == 0;
  return memory_.available() - (alone ? 0 : reserved + growth_estimate(sequence));
}

// It has its pages: from now on it runs.
void AdmissionControl::start(Sequence& sequence) {
  sequence.scheduled = sequence.computed;
  sequence.prefill_end = sequence.length();
  sequence.look.deficit = 0;
  sequence.look.deferred = 0;
  requests_.start(sequence);
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

void AdmissionControl::look_up(Sequence& sequence) {
  if (sequence.look.matched_tree == memory_.changes()) return;
  ++counters_.look_ups;
  const int32_t matched = memory_.cached_tokens(sequence);
  if (matched > sequence.look.matched) sequence.look.deferred = 0;
  sequence.look.matched = matched;
  sequence.look.matched_tree = memory_.changes();
}

// Whether a running request is about to publish the very page that this one would have to compute next.
bool AdmissionControl::is_being_computed(const Sequence& sequence) const {
  const int32_t begin = sequence.look.matched;
  const int32_t end = begin + memory_.page_size();
  if (!options_.prefix_cache || end > std::min(sequence.match_limit, sequence.length() - 1)) return false;
  if (sequence.look.deferred >= kMaxDeferredPasses) return false;
  return std::ranges::any_of(requests_.running(), [&](const Sequence* other) {
    const bool other_weights = other->computed > 0 && other->weight_version != memory_.weight_version();
    if (!other->publishable || other_weights) return false;
    if (other->prefill_end < end || other->shared_pages * memory_.page_size() >= end) return false;
    // The page itself first: that is where two prompts with a common prefix differ.
    const auto equal = [&](int32_t from, int32_t to) {
      return std::equal(sequence.tokens.begin() + from, sequence.tokens.begin() + to, other->tokens.begin() + from);
    };
    return equal(begin, end) && other->extra_key == sequence.extra_key && equal(0, begin);
  });
}

// Pages that the running requests are expected to take yet.
int64_t AdmissionControl::growth_of_running() const {
  int64_t pages = 0;
  for (const Sequence* sequence : requests_.running()) pages += growth_estimate(*sequence);
  return pages;
}

// Pages that a request is expected to need beyond those for its tokens of now.
int32_t AdmissionControl::growth_estimate(const Sequence& sequence) const {
  const int32_t left = std::max(0, std::min({sequence.sampling.max_tokens - sequence.drawn(),
                                             model_.context_length - sequence.length(), kMaxNewTokensEstimate}));
  const auto expected = static_cast<int32_t>(std::ceil(left * ratio_.value()));
  return memory_.pages_for(int64_t{sequence.length()} + expected) - memory_.pages_for(sequence.length());
}

}  // namespace millrace
