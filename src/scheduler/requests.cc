#include "scheduler/requests.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "scheduler/stop.h"

namespace millrace {

Requests::Requests(const SchedulerOptions& options, SequenceMemory& memory, SchedulerFacts& counters)
    : options_(options),
      memory_(memory),
      counters_(counters),
      waiting_(options.max_skips, options.policy, options.policy_seed) {}

Sequence* Requests::find(ReqId id) const {
  const auto found = live_.find(id);
  return found == live_.end() ? nullptr : found->second.get();
}

// Those that came back from running are not dropped: they have been promised to go on.
bool Requests::make_space(int32_t priority, Deltas& out) {
  // The next step takes as many as may still run: of a burst that fits, none is refused.
  const int32_t may_run = std::max(0, options_.max_running_requests - running_count());
  if (waiting_.size() - may_run < options_.max_queued_requests) return true;
  if (options_.policy != Policy::kPriority) return false;
  Sequence* worst = waiting_.worst();
  if (worst == nullptr || worst->priority >= priority) return false;
  const Status status = error(StatusCode::kUnavailable,
                              "the queue is full ({} requests) and one of priority {} came; this one has priority {}; "
                              "try again later",
                              waiting_.size(), priority, worst->priority);
  end(*worst, error_finish(status), out);
  ++counters_.dropped;
  return true;
}

bool Requests::starved() const {
  return !running_.empty() && std::ranges::all_of(running_, [](const Sequence* sequence) {
    return sequence->remaining() > 0 && sequence->ready() <= 0;
  });
}

void Requests::add(std::unique_ptr<Sequence> sequence) {
  deadlines_.add(*sequence);
  waiting_.push(*sequence);
  const ReqId id = sequence->id;
  CHECK(live_.emplace(id, std::move(sequence)).second);
}

void Requests::start(Sequence& sequence) {
  CHECK(!sequence.ended && sequence.batches == 0);
  const auto behind = std::ranges::upper_bound(running_, sequence.arrival, {}, &Sequence::arrival);
  running_.insert(behind, &sequence);
  deadlines_.admitted(sequence);
}

// What it computed goes to the cache, from which it is evicted last pages first, and only as far as needed; so much
// less is left to compute again.
void Requests::retract(Sequence& sequence) {
  CHECK(sequence.pending == 0);
  release(sequence);
  CHECK(std::erase(running_, &sequence) == 1);
  waiting_.push(sequence);
  ++sequence.retractions;
  ++counters_.retractions;
}

void Requests::retract_all() {
  while (!running_.empty()) retract(*running_.back());
}

// No batch names one that waits, so that nothing writes to its capture. Rows of a prompt that has its first token may
// have been read, and stay as they are.
void Requests::restart_captures() {
  for (const auto& [id, sequence] : live_) {
    const bool waits = sequence->pages.size() == 0;
    if (!sequence->capture || !waits || sequence->generated() > 0) continue;
    sequence->capture->restart();
    sequence->capture_next = sequence->capture->next(0);
    limit_match(*sequence);
  }
}

void Requests::end(Sequence& sequence, wire::Finish end, Deltas& out, wire::TokenDelta last) {
  CHECK(!sequence.ended);
  ++counters_.ended;
  counters_.aborted += end.reason == wire::FinishReason::kAborted;
  counters_.failed += end.reason == wire::FinishReason::kError;
  counters_.deadline += end.code == StatusCode::kDeadline;
  last.id = sequence.id;
  last.finish = std::move(end);
  last.usage = sequence.usage();
  last.usage.transfer = sequence.transfer;
  // Without a token, the version of the rows, or the one that would have computed them.
  const uint64_t of_rows = sequence.computed > 0 ? sequence.weight_version : memory_.weight_version();
  last.weight_version = sequence.last_token_version != 0 ? sequence.last_token_version : of_rows;
  out.push_back(std::move(last));

  deadlines_.remove(sequence);
  sequence.ended = true;
  sequence.tokens.resize(static_cast<std::size_t>(sequence.known()));
  sequence.pending = 0;
  auto owner = live_.extract(sequence.id);
  CHECK(owner && owner.mapped().get() == &sequence);  // it must outlive this call
  if (std::erase(running_, &sequence) == 0) return waiting_.remove(sequence);
  if (sequence.batches > 0) {
    leaving_.push_back(std::move(owner.mapped()));
  } else {
    release(sequence);
  }
}

void Requests::end_expired(int64_t now_us, Deltas& out) {
  while (Sequence* sequence = deadlines_.expired(now_us)) {
    const bool waited = sequence->queue_deadline_us <= now_us;
    const int64_t limit_us = waited ? sequence->queue_deadline_us : sequence->deadline_us;
    const Status status = error(StatusCode::kDeadline, "{} for {} ms; its limit ({}) is {} ms",
                                waited ? "the request waited for its first step" : "the request was not done",
                                (now_us - sequence->accepted_us) / 1000, waited ? "queue_timeout_ms" : "timeout_ms",
                                (limit_us - sequence->accepted_us) / 1000);
    end(*sequence, error_finish(status), out);
  }
}

void Requests::abort_all(Deltas& out) {
  std::vector<Sequence*> all;
  for (const auto& [id, sequence] : live_) all.push_back(sequence.get());
  std::ranges::sort(all, {}, &Sequence::arrival);
  for (Sequence* sequence : all) end(*sequence, aborted_finish(), out);
}

void Requests::leave(Sequence& sequence) {
  CHECK(sequence.ended);
  if (sequence.batches > 0) return;
  release(sequence);
  std::erase_if(leaving_, [&](const std::unique_ptr<Sequence>& owner) { return owner.get() == &sequence; });
}

// Releases what it holds: what it computed goes to the cache. No batch in flight names it.
void Requests::release(Sequence& sequence) {
  CHECK(sequence.batches == 0);
  memory_.release(sequence, Publish::kYes);
  sequence.scheduled = 0;
}

}  // namespace millrace
