// Planning one step: every decode gets its row, then waiting requests are admitted, then the rest of the token budget
// goes to prefills. Called only while nothing is in flight.
#include <algorithm>
#include <cmath>

#include "scheduler/scheduler.h"
#include "scheduler/share.h"
#include "scheduler/stop.h"

namespace millrace {

Batch Scheduler::plan(Deltas& out) {
  const bool retracted = make_room_for_decodes(out);
  // Who was just sent away must not come back in the same breath.
  if (!retracted) admit(out);

  Batch batch;
  batch.step = next_step_++;
  std::vector<Sequence*> prefilling;
  std::vector<int32_t> remaining;
  for (Sequence* sequence : running_) {
    if (sequence->decoding()) {
      add_rows(*sequence, 1, batch);
    } else {
      prefilling.push_back(sequence);
      remaining.push_back(sequence->remaining());
    }
  }
  const int32_t least = std::min(kMinPrefillTokens, options_.chunked_prefill_tokens);
  const int32_t decodes = static_cast<int32_t>(batch.sequences.size());
  const std::vector<int32_t> shares =
      share_prefill(remaining, std::max(least, options_.chunked_prefill_tokens - decodes));
  for (std::size_t i = 0; i < prefilling.size(); ++i) {
    if (shares[i] > 0) add_rows(*prefilling[i], shares[i], batch);
  }
  return batch;
}

void Scheduler::add_rows(Sequence& sequence, int32_t count, Batch& batch) const {
  SequenceStep& step = batch.sequences.emplace_back();
  const auto first = sequence.tokens.begin() + sequence.computed;
  step.request = sequence.id;
  step.tokens.assign(first, first + count);
  step.position = sequence.computed;
  const int32_t pages = memory_.pages_for(sequence.computed + count);
  for (int32_t i = 0; i < pages; ++i) step.pages.push_back(sequence.pages[static_cast<std::size_t>(i)].value);
  step.sample = count == sequence.remaining();
  const wire::SamplingParams& sampling = sequence.sampling;
  step.sampling = {sampling.temperature, sampling.top_p, sampling.min_p, sampling.top_k, sampling.seed};
}

// Each decode needs a place for one more token. Where cached pages do not suffice, requests are retracted. Returns
// whether any was.
bool Scheduler::make_room_for_decodes(Deltas& out) {
  bool retracted = false;
  const auto lacking = [this] {
    int32_t pages = 0;
    for (const Sequence* sequence : running_) pages += memory_.pages_lacking(*sequence);
    return pages;
  };
  while (lacking() > memory_.available()) {
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
    CHECK(memory_.grow(*sequence));
    decoded |= sequence->decoding();
    generated += sequence->generated();
    allowed += sequence->sampling.max_tokens;
  }
  if (retracted) {
    ratio_.retracted(generated, allowed, static_cast<int64_t>(running_.size()));
  } else if (decoded) {
    ratio_.step_went_well();
  }
  return retracted;
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
  memory_.release(sequence, Publish::kYes);
  std::erase(running_, &sequence);
  waiting_.push(sequence);
  ++counters_.retractions;
}

void Scheduler::admit(Deltas& out) {
  int64_t reserved = 0;  // pages that the running requests are expected to take yet
  for (const Sequence* sequence : running_) reserved += growth_estimate(*sequence);
  waiting_.offer([&](Sequence& sequence) {
    if (static_cast<int32_t>(running_.size()) >= options_.max_running_requests) return Admission::kStop;
    const int32_t growth = growth_estimate(sequence);
    // Whoever runs alone may use the whole pool, whatever the estimate says: so the queue always moves.
    const int64_t reserve = running_.empty() ? 0 : reserved + growth;
    if (!memory_.attach(sequence, weight_version_.value_or(0), reserve)) return Admission::kNoRoom;
    reserved += growth;
    const auto place = std::ranges::upper_bound(running_, sequence.arrival, {}, &Sequence::arrival);
    running_.insert(place, &sequence);
    if (!sequence.cached) {
      sequence.cached = std::min(sequence.computed, sequence.prompt_length);
      counters_.prompt_tokens += static_cast<uint64_t>(sequence.prompt_length);
      counters_.cached_tokens += static_cast<uint64_t>(*sequence.cached);
    }
    return Admission::kAdmitted;
  });
  // Nothing runs and the first does not fit: it grew, was retracted, and no longer fits even alone.
  while (running_.empty() && !waiting_.empty()) end_too_long(waiting_.front(), out);
}

// Pages that a request is expected to need beyond those for its tokens of now.
int32_t Scheduler::growth_estimate(const Sequence& sequence) const {
  const int32_t left = std::min({sequence.sampling.max_tokens - sequence.generated(),
                                 model_.context_length - sequence.length(), kMaxNewTokensEstimate});
  const auto expected = static_cast<int32_t>(std::ceil(left * ratio_.value()));
  return memory_.pages_for(int64_t{sequence.length()} + expected) - memory_.pages_for(sequence.length());
}

// Not kResourceExhausted: to try again later would be in vain.
void Scheduler::end_too_long(Sequence& sequence, Deltas& out) {
  const Status status = error(
      StatusCode::kTooLarge, "the request has {} tokens and needs {} KV pages of {} tokens to go on; the pool has {}",
      sequence.length(), memory_.pages_for(sequence.length()), memory_.page_size(), model_.page_count);
  finish(sequence, error_finish(status), Publish::kYes, out);
}

}  // namespace millrace
