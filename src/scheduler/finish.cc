// How requests end, and the self-check when none are left.
#include <algorithm>
#include <utility>

#include "base/log.h"
#include "scheduler/scheduler.h"
#include "scheduler/stop.h"

namespace millrace {

// The one place where a request ends. Its client hears it now. Its pages stay until no batch in flight names them;
// `sequence` is gone afterwards, unless one does. `last` may bring the last tokens.
void Scheduler::finish(Sequence& sequence, wire::Finish end, Deltas& out, wire::TokenDelta last) {
  CHECK(!sequence.ended);
  ++counters_.ended;
  counters_.aborted += end.reason == wire::FinishReason::kAborted;
  counters_.failed += end.reason == wire::FinishReason::kError;
  counters_.deadline += end.code == StatusCode::kDeadline;
  last.id = sequence.id;
  last.finish = std::move(end);
  last.usage = sequence.usage();
  last.weight_version = sequence.spoken_version;
  out.push_back(std::move(last));

  deadlines_.remove(sequence);
  sequence.ended = true;
  sequence.tokens.resize(static_cast<std::size_t>(sequence.known()));
  sequence.pending = 0;
  auto owner = sequences_.extract(sequence.id);
  if (std::erase(running_, &sequence) == 0) return waiting_.remove(sequence);
  if (sequence.batches > 0) {
    leaving_.push_back(std::move(owner.mapped()));
  } else {
    let_go(sequence);
  }
}

// Gives back what it holds: what it computed goes to the cache. No batch in flight names it.
void Scheduler::let_go(Sequence& sequence) {
  CHECK(sequence.batches == 0);
  const TreeMark before = mark_tree();
  memory_.release(sequence, Publish::kYes);
  note_tree(before);
  sequence.scheduled = 0;
}

Scheduler::TreeMark Scheduler::mark_tree() const {
  return {memory_.cache().cached_pages(), memory_.counters().evicted};
}

// After anything that may have changed the tree since `before`.
void Scheduler::note_tree(TreeMark before) {
  const TreeMark now = mark_tree();
  if (now == before) return;
  ++tree_changes_;
  published_pages_ += static_cast<uint64_t>(now.cached - before.cached) + (now.evicted - before.evicted);
}

void Scheduler::expire(Deltas& out) {
  if (deadlines_.size() == 0) return;
  const int64_t now = options_.now_us();
  while (Sequence* sequence = deadlines_.expired(now)) {
    const bool waited = sequence->queue_deadline_us <= now;
    const int64_t limit_us = waited ? sequence->queue_deadline_us : sequence->deadline_us;
    const Status status = error(StatusCode::kDeadline, "{} for {} ms; its limit ({}) is {} ms",
                                waited ? "the request waited for its first step" : "the request was not done",
                                (now - sequence->accepted_us) / 1000, waited ? "queue_timeout_ms" : "timeout_ms",
                                (limit_us - sequence->accepted_us) / 1000);
    finish(*sequence, error_finish(status), out);
  }
}

Status Scheduler::flush_cache() {
  if (busy()) {
    return error(StatusCode::kConflict, "the cache is only flushed while idle; {} requests run and {} wait",
                 running_.size(), waiting_.size());
  }
  memory_.flush();
  ++tree_changes_;
  return ok_status();
}

void Scheduler::set_weight_version(uint64_t version) {
  weight_version_ = version;
  ++tree_changes_;
}

// When nobody holds a page, the books must say so. If they do not, that is a bug, but no reason to stop serving: count
// it, log it, and start again from empty books.
void Scheduler::check_books_when_idle() {
  if (checked_idle_) return;
  checked_idle_ = true;
  ratio_.reset();
  Status status = memory_.verify(true);
  if (status.ok() && !leaving_.empty()) {
    status = internal_error("idle, but {} ended requests keep pages; wanted none", leaving_.size());
  }
  if (status.ok()) return;
  ++counters_.book_rebuilds;
  LOG_ERROR("scheduler: the page books are wrong and are rebuilt: {}", status.to_string());
  leaving_.clear();
  memory_.rebuild();
  ++tree_changes_;
}

SchedulerFacts Scheduler::facts() const {
  SchedulerFacts facts = counters_;
  const PageBooks books = memory_.books();
  facts.running = static_cast<int32_t>(running_.size());
  facts.waiting = waiting_.size();
  facts.in_flight = static_cast<int32_t>(in_flight_.size());
  facts.pages_total = books.all;
  facts.pages_free = books.free();
  facts.pages_cached = books.cached();
  facts.pages_held = books.held();
  facts.pages_locked = memory_.cache().locked_pages();
  facts.page_size = memory_.page_size();
  if (const PagePool* host = memory_.host_pool()) {
    facts.host_pages_total = host->page_count();
    facts.host_pages_used = host->page_count() - host->free_count();
  }
  const CacheCounters counters = memory_.counters();
  const auto tokens = [&](uint64_t pages) { return pages * static_cast<uint64_t>(facts.page_size); };
  facts.evicted_tokens = tokens(counters.evicted);
  facts.host_evicted_tokens = tokens(counters.host_evicted);
  facts.backed_up_tokens = tokens(counters.backed_up);
  facts.loaded_tokens = tokens(counters.loaded);
  facts.used_tokens = int64_t{facts.pages_held + facts.pages_locked} * facts.page_size;
  facts.new_token_ratio = ratio_.value();
  facts.weight_version = weight_version_.value_or(0);
  facts.step_fixed_us = cost_.fixed_us();
  facts.step_row_us = cost_.per_row_us();
  return facts;
}

}  // namespace millrace
