// Planning one step: every decode gets its row, then waiting requests are admitted, then the rest of the token budget
// goes to prefills. While a batch is in flight, the plan is for the one after it: a sequence then stands where it will
// stand when that batch was settled, and the token that it samples is kTokenInFlight.
#include <algorithm>

#include "base/trace.h"
#include "scheduler/scheduler.h"
#include "scheduler/share.h"
#include "scheduler/stop.h"

namespace millrace {

Scheduler::Plan Scheduler::plan(Deltas& out) {
  trace::Span span("plan", "scheduler");
  Plan plan;
  const Room room = make_room_for_decodes(out);
  if (room == Room::kWaitForSettle) {
    ++counters_.bubbles;
    return plan;
  }
  // Who was just sent away must not come back in the same breath.
  if (room == Room::kMade) admit(out);
  if (hold_back_) return plan;

  plan.batch.sequences.reserve(running_.size());
  plan.rows.reserve(running_.size());
  std::vector<Sequence*> prefilling;
  std::vector<int32_t> remaining;
  for (Sequence* sequence : running_) {
    if (!needs_row(*sequence)) continue;
    if (sequence->remaining() == 1) {
      add_rows(*sequence, 1, plan);
    } else {
      prefilling.push_back(sequence);
      remaining.push_back(sequence->remaining());
    }
  }
  const std::vector<int32_t> shares = share_prefill(remaining, prefill_budget(static_cast<int32_t>(plan.rows.size())));
  for (std::size_t i = 0; i < prefilling.size(); ++i) {
    if (shares[i] > 0) add_rows(*prefilling[i], shares[i], plan);
  }
  span.note("sequences", static_cast<int64_t>(plan.rows.size()));
  return plan;
}

// Rows for prefills beside `decodes` rows of decodes. Never less than kMinPrefillTokens, so that prefills do not starve
// either; above that, no more than keeps the step within the gap that those who decode were promised.
int32_t Scheduler::prefill_budget(int32_t decodes) const {
  const int32_t least = std::min(kMinPrefillTokens, options_.chunked_prefill_tokens);
  int32_t rows = options_.chunked_prefill_tokens;
  if (options_.max_decode_gap_ms > 0 && decodes > 0) {
    rows = cost_.rows_within(int64_t{options_.max_decode_gap_ms} * 1000, rows);
  }
  return std::max(least, rows - decodes);
}

// Milliseconds until it is time to plan another batch; 0: now. The batch in flight should not end before the next is
// there, but who arrives while it runs would have to wait for that one too: so it is planned late, a part of the
// expected time before the end, which is how wrong the expectation may be.
int Scheduler::plan_in_ms() const {
  if (in_flight_.empty()) return 0;
  const InFlight& newest = in_flight_.back();
  int32_t rows = 0;
  for (const Rows& one : newest.rows) rows += one.count;
  const auto expected_us = static_cast<int64_t>(cost_.predict_us(rows));
  const int64_t lead_us = std::max(kPlanLeadUs, expected_us / kPlanLeadPart);
  const int64_t early_us = newest.begun_us + expected_us - lead_us - options_.now_us();
  return early_us > 0 ? static_cast<int>((early_us + 999) / 1000) : 0;
}

// What grows with a text is shared with the runner, not copied: page table, generated tokens, lists of ids. The runner
// reads them while the sequence goes on; base/shared_span.h says why that is no race.
void Scheduler::add_rows(Sequence& sequence, int32_t count, Plan& plan) const {
  Rows rows{&sequence, count};
  SequenceStep& step = plan.batch.sequences.emplace_back();
  const int32_t position = sequence.scheduled;
  const auto first = sequence.tokens.begin() + position;
  step.request = sequence.id;
  step.tokens.assign(first, first + count);
  step.position = position;
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

void Scheduler::fill_sampling(Sequence& sequence, SequenceStep& step) const {
  SamplingSpec& to = step.sampling;
  if (!step.answers()) return;
  if (step.sample) {
    to = sequence.spec;
    if (sequence.drawn() >= sequence.sampling.min_tokens) to.banned = {};
  } else {
    to.top_logprobs = sequence.spec.top_logprobs;
    to.logprob_token_ids = sequence.spec.logprob_token_ids;
  }
  if (!step.score_targets.empty()) to.top_logprobs = std::max(to.top_logprobs, 0);
  if (to.top_logprobs < 0) to.logprob_token_ids = {};
  if (!step.sample || !to.penalizes() || sequence.drawn() == 0) return;
  // The last one may be in flight; those before it are known, because one batch at most is in flight now.
  step.generated = sequence.penalized.share(static_cast<std::size_t>(sequence.drawn() - 1));
  step.last_is_generated = true;
}

}  // namespace millrace
