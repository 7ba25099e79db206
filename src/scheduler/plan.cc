#include "scheduler/plan.h"

#include <algorithm>

#include "base/trace.h"
#include "scheduler/forced_run.h"
#include "scheduler/share.h"
#include "scheduler/stop.h"

namespace millrace {

BatchPlanner::BatchPlanner(const SchedulerOptions& options, const RunnerFacts& model, SequenceMemory& memory,
                           Requests& requests, const StepCost& cost, SchedulerFacts& counters)
    : options_(options),
      model_(model),
      memory_(memory),
      requests_(requests),
      cost_(cost),
      counters_(counters),
      suppressed_(options.suppressed_token_ids),
      depth_(options.overlap ? model.depth : 1),
      ratio_(options.conservativeness),
      admission_(options, model, memory, requests, ratio_, counters) {}

BatchPlan BatchPlanner::plan(const WorkInFlight& work) {
  trace::Span span("plan", "scheduler");
  BatchPlan plan;
  const DecodePages pages = allocate_for_decodes(work);
  if (pages == DecodePages::kWaitForSettle) {
    ++counters_.bubbles;
    return plan;
  }
  // A step that retracted requests admits none: it would take back the ones it has just retracted.
  if (pages == DecodePages::kReady) {
    const auto [refused, hold_back] = admission_.admit(work.any);
    hold_back_ = hold_back;
    // One that is refused while nothing runs and nothing keeps pages would wait for ever; but each fits in the pool
    // alone.
    CHECK(!refused || requests_.running_count() > 0 || work.any || memory_.transferring());
  }
  if (hold_back_) return plan;

  plan.batch.sequences.reserve(requests_.running().size());
  plan.rows.reserve(requests_.running().size());
  std::vector<Sequence*> prefilling;
  std::vector<int32_t> remaining;
  for (Sequence* sequence : requests_.running()) {
    if (sequence->remaining() <= 1 || sequence->ready() <= 0) continue;
    prefilling.push_back(sequence);
    remaining.push_back(sequence->ready());
  }
  const int32_t decode_rows = add_decodes(work, plan);
  std::vector<int32_t> shares = share_prefill(remaining, prefill_budget(decode_rows));
  cut_beside_ends(remaining, decode_rows, shares);
  for (std::size_t i = 0; i < prefilling.size(); ++i) {
    if (shares[i] > 0) add_rows(*prefilling[i], shares[i], plan);
  }
  span.note("sequences", static_cast<int64_t>(plan.rows.size()));
  return plan;
}

// Their rows, with those of forced runs as far as budget and pages go; returns how many. No page is evicted for
// a run.
int32_t BatchPlanner::add_decodes(const WorkInFlight& work, BatchPlan& plan) const {
  const std::vector<Sequence*> decodes = choose_decodes(work);
  auto rows = static_cast<int32_t>(decodes.size());
  for (Sequence* sequence : decodes) {
    const int32_t pages = sequence->pages.size() + memory_.pool().free_count();
    const int32_t in_pages = pages * memory_.page_size() - sequence->length();
    const int32_t most = std::min(in_pages, options_.chunked_prefill_tokens - rows);
    const int32_t forced = forced_rows(*sequence, options_, model_.context_length, most);
    append_forced(*sequence, forced);
    CHECK(memory_.grow(*sequence));
    add_rows(*sequence, 1 + forced, plan);
    plan.rows.back().forced = forced;
    rows += forced;
  }
  plan.decodes = static_cast<int32_t>(decodes.size());
  return rows;
}

// Whether there is anything to compute for it in the next batch. Behind a token in flight there is, where the runner
// can put it in: it knows those of the newest batch, and penalties and grammars need all tokens before it.
bool BatchPlanner::needs_row(const Sequence& sequence, const WorkInFlight& work) const {
  if (sequence.ready() <= 0 || ends_in_flight(sequence, model_.context_length)) return false;
  if (sequence.pending == 0) return true;
  return model_.token_in_flight && sequence.last_step == work.newest_step &&
         (!sequence.spec.wants_generated() ||
          std::cmp_greater_equal(sequence.known_generated.size() + 1, sequence.drawn()));
}

// In the order of arrival. All that can have a row, or the share of a micro-batch: then those whose last batch is the
// oldest, which have waited longest.
std::vector<Sequence*> BatchPlanner::choose_decodes(const WorkInFlight& work) const {
  std::vector<Sequence*> ready;
  int32_t decoding = 0;  // those that wait for their token included
  for (Sequence* sequence : requests_.running()) {
    if (sequence->remaining() != 1 || ends_in_flight(*sequence, model_.context_length)) continue;
    ++decoding;
    if (needs_row(*sequence, work)) ready.push_back(sequence);
  }
  if (model_.token_in_flight) return ready;
  const DecodeShares shares = share_decodes(decoding, depth_);
  if (work.with_decodes >= shares.batches) return {};
  if (ready.size() > static_cast<std::size_t>(shares.rows)) {
    std::ranges::stable_sort(ready, {}, &Sequence::last_step);
    ready.resize(static_cast<std::size_t>(shares.rows));
    std::ranges::sort(ready, {}, &Sequence::arrival);
  }
  return ready;
}

// Rows for prefills beside `decodes` rows of decodes. Never less than kMinPrefillTokens, so that prefills do not starve
// either; above that, no more than keeps the step within the gap that decoding requests were promised.
int32_t BatchPlanner::prefill_budget(int32_t decodes) const {
  const int32_t least = std::min(kMinPrefillTokens, options_.chunked_prefill_tokens);
  int32_t rows = options_.chunked_prefill_tokens;
  if (options_.max_decode_gap_ms > 0 && decodes > 0) {
    // Without token_in_flight a decode comes back behind all batches in flight (Little's law).
    const int64_t steps_in_gap = model_.token_in_flight ? 1 : depth_;
    rows = cost_.rows_within(int64_t{options_.max_decode_gap_ms} * 1000 / steps_in_gap, rows);
  }
  return std::max(least, rows - decodes);
}

// What grows with a text is shared with the runner, not copied: page table, generated tokens, lists of ids. The runner
// reads them while the sequence goes on; base/shared_span.h says why that is no race.
void BatchPlanner::add_rows(Sequence& sequence, int32_t count, BatchPlan& plan) const {
  CHECK(count > 0 && count <= sequence.remaining());
  PlannedRows rows{&sequence, count};
  SequenceStep& step = plan.batch.sequences.emplace_back();
  const int32_t position = sequence.scheduled;
  const auto first = sequence.tokens.begin() + position;
  step.request = sequence.id;
  step.tokens.assign(first, first + count);
  step.position = position;
  step.input = sequence.input;
  step.row_state = sequence.row_state;
  if (sequence.capture_next < position + count && position < sequence.capture->end()) step.capture = sequence.capture;
  step.pages = sequence.pages.share(memory_.pages_for(position + count));
  step.sample = count == sequence.remaining() && sequence.sampling.max_tokens > 0;
  // The row of a position scores the token after it, as long as that is the prompt's.
  const int32_t from = std::max(sequence.score_next, position + 1);
  const int32_t until = std::min(sequence.prompt_length, position + count + 1);
  if (from < until) {
    rows.score_begin = from;
    rows.scores = until - from;
    step.score_begin = from - 1 - position;
    step.score_targets.assign(sequence.tokens.begin() + from, sequence.tokens.begin() + until);
  }
  rows.sample = step.sample;
  fill_sampling(sequence, step);
  plan.rows.push_back(rows);
}

void BatchPlanner::fill_sampling(Sequence& sequence, SequenceStep& step) const {
  SamplingSpec& to = step.sampling;
  if (!step.answers()) return;
  if (step.sample) {
    to = sequence.spec;
    if (sequence.drawn() >= sequence.sampling.min_tokens) to.banned = suppressed_;
    step.forced_limit = forced_limit(sequence, options_, model_.context_length);
  } else {
    to.top_logprobs = sequence.spec.top_logprobs;
    to.logprob_token_ids = sequence.spec.logprob_token_ids;
  }
  if (!step.score_targets.empty()) to.top_logprobs = std::max(to.top_logprobs, 0);
  if (to.top_logprobs < 0) to.logprob_token_ids = {};
  if (!step.sample || !to.wants_generated() || sequence.drawn() == 0) return;
  // The last one may be in flight; those before it are known: see needs_row().
  step.generated = sequence.known_generated.share(static_cast<std::size_t>(sequence.drawn() - 1));
  step.last_is_generated = true;
}

}  // namespace millrace
