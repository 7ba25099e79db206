// One turn of the loop, and what becomes of a batch that came back.
#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/trace.h"
#include "scheduler/scheduler.h"
#include "scheduler/stop.h"

namespace millrace {

bool Scheduler::step(int poll_timeout_ms, Deltas& out) {
  expire(out);
  const std::size_t depth = options_.overlap ? kMaxInFlight : 1;
  int wait_ms = poll_timeout_ms;
  while (in_flight_.size() < depth && !sequences_.empty()) {
    if (const int early_ms = plan_in_ms(); early_ms > 0) {
      wait_ms = std::min(wait_ms, early_ms);
      break;
    }
    Plan next = plan(out);
    if (next.empty() || !submit(std::move(next), out)) break;
  }
  if (!in_flight_.empty()) {
    std::optional<BatchResult> result = runner_.poll(wait_ms);
    if (result) settle(std::move(*result), out);
  }
  if (!busy()) check_books_when_idle();
  return busy();
}

// False: the runner refused it, and those that it names ended.
bool Scheduler::submit(Plan plan, Deltas& out) {
  checked_idle_ = false;
  plan.batch.step = next_step_++;
  plan.batch.copies = memory_.take_copies();
  InFlight batch{plan.batch.step, std::move(plan.rows), options_.now_us(), {}};
  std::vector<PageCopy> copies = plan.batch.copies;
  Status status = runner_.submit(std::move(plan.batch));
  if (!status.ok()) {
    memory_.return_copies(std::move(copies));
    status = status.with_prefix("the step was refused");
    LOG_ERROR("scheduler: step {} with {} requests: {}", batch.step, batch.rows.size(), status.to_string());
    for (const Rows& rows : batch.rows) finish(*rows.sequence, error_finish(status), out);
    return false;
  }
  for (const Rows& rows : batch.rows) {
    Sequence& sequence = *rows.sequence;
    ++sequence.batches;
    sequence.scheduled += rows.count;
    if (rows.sample) {
      sequence.tokens.push_back(kTokenInFlight);
      ++sequence.pending;
    }
  }
  in_flight_.push_back(std::move(batch));
  return true;
}

void Scheduler::settle(BatchResult result, Deltas& out) {
  trace::Span span("settle", "scheduler");
  span.note("sequences", static_cast<int64_t>(in_flight_.front().rows.size()));
  const InFlight batch = std::move(in_flight_.front());
  in_flight_.pop_front();
  if (!in_flight_.empty()) in_flight_.front().begun_us = options_.now_us();
  ++counters_.steps;
  counters_.compute_us += static_cast<uint64_t>(std::max<int64_t>(0, result.compute_us));
  counters_.idle_us += static_cast<uint64_t>(std::max<int64_t>(0, result.idle_us));
  memory_.give_back(batch.duplicates);
  if (result.status.ok() && result.step != batch.step) {
    result.status = internal_error("the runner returned step {}; wanted {}", result.step, batch.step);
  }
  if (!result.status.ok()) return fail_batch(batch, result.status.with_prefix("the step failed"), out);

  if (weight_version_ != result.weight_version) set_weight_version(result.weight_version);
  int32_t rows_computed = 0;
  std::size_t next = 0;
  for (const Rows& rows : batch.rows) {
    SampledToken* answer = nullptr;
    const bool answers = rows.sample || rows.scores > 0;
    if (answers && next < result.tokens.size() && result.tokens[next].request == rows.sequence->id) {
      answer = &result.tokens[next++];
    }
    rows_computed += rows.count;
    settle_rows(rows, answer, result, out);
  }
  cost_.observe(rows_computed, result.compute_us);
}

// `answer`: the row's result; nullptr for rows that give none, or that the runner forgot.
void Scheduler::settle_rows(const Rows& rows, SampledToken* answer, const BatchResult& result, Deltas& out) {
  Sequence& sequence = *rows.sequence;
  --sequence.batches;
  counters_.computed_tokens += static_cast<uint64_t>(rows.count);
  const bool prefill = sequence.computed < sequence.prefill_end;
  (prefill ? counters_.prefill_rows : counters_.decode_rows) += static_cast<uint64_t>(rows.count);

  const Status status = judge(rows, answer);
  // KV of more than one weight version is never published. Before anything is computed it is of none.
  if (sequence.computed == 0) sequence.weight_version = result.weight_version;
  if (!status.ok() || sequence.weight_version != result.weight_version) sequence.publishable = false;
  // A row that was computed for a token that nobody knows any more counts for nothing.
  sequence.computed = std::min(sequence.computed + rows.count, sequence.ended ? sequence.length() : INT32_MAX);
  if (sequence.ended) {
    counters_.wasted_rows += static_cast<uint64_t>(rows.count);
    return leave(sequence);
  }
  if (!status.ok()) return finish(sequence, error_finish(status), out);
  if (prefill) publish(sequence);

  wire::TokenDelta delta;
  take_scores(sequence, rows, answer, delta);
  std::optional<wire::Finish> end;
  if (rows.sample) {
    end = take_token(sequence, *answer, result.weight_version, delta);
  } else if (sequence.computed == sequence.length()) {  // nothing was to be generated
    end.emplace().reason = wire::FinishReason::kLength;
  }
  if (end) return finish(sequence, std::move(*end), out, std::move(delta));
  if (delta.tokens.empty() && delta.prompt_logprobs.empty()) return;
  delta.id = sequence.id;
  delta.usage = sequence.usage();
  delta.weight_version = sequence.spoken_version;
  out.push_back(std::move(delta));
}

// Whether the runner's answer is one that can be given on.
Status Scheduler::judge(const Rows& rows, const SampledToken* answer) const {
  if (!rows.sample && rows.scores == 0) return ok_status();
  if (answer == nullptr) return internal_error("the runner returned no token for this request");
  if (!answer->status.ok()) return Status(StatusCode::kInternal, answer->status.message());
  if (rows.sample && (answer->token < 0 || answer->token >= model_.vocab_size)) {
    return internal_error("the model sampled token {}; wanted 0..{}", answer->token, model_.vocab_size - 1);
  }
  if (static_cast<int64_t>(answer->prompt_logprobs.size()) != rows.scores) {
    return internal_error("the runner returned {} prompt logprobs; wanted {}", answer->prompt_logprobs.size(),
                          rows.scores);
  }
  if (rows.sample && rows.sequence->sampling.top_logprobs >= 0 && !answer->logprobs) {
    return internal_error("the runner returned no logprobs for this request");
  }
  return ok_status();
}

void Scheduler::take_scores(Sequence& sequence, const Rows& rows, SampledToken* answer, wire::TokenDelta& delta) {
  if (std::exchange(sequence.tell_first_prompt_logprob, false)) {
    delta.prompt_logprobs.emplace_back().token = sequence.tokens.front();
  }
  if (rows.scores == 0) return;
  std::ranges::move(answer->prompt_logprobs, std::back_inserter(delta.prompt_logprobs));
  sequence.score_next = rows.score_begin + rows.scores;
  // What was told need not be computed again after a retraction.
  sequence.match_limit = sequence.score_next < sequence.prompt_length ? sequence.score_next - 1 : INT32_MAX;
}

std::optional<wire::Finish> Scheduler::take_token(Sequence& sequence, SampledToken& answer, uint64_t version,
                                                  wire::TokenDelta& delta) {
  sequence.tokens[static_cast<std::size_t>(sequence.known())] = answer.token;
  if (sequence.spec.penalizes()) sequence.penalized.push_back(answer.token);
  --sequence.pending;
  sequence.spoken_version = version;
  ++counters_.generated_tokens;
  std::optional<wire::Finish> end = stop_after(sequence, options_.eos_token_ids, model_.context_length);
  if (!end || !end->matched_token) delta.tokens.push_back(answer.token);
  if (sequence.sampling.top_logprobs >= 0) delta.logprobs.push_back(std::move(*answer.logprobs));
  return end;
}

// Publishes what is computed. Pages of the sequence's own that were cached already may be named by batches in flight;
// they are given back when the newest of those was polled.
void Scheduler::publish(Sequence& sequence) {
  std::vector<PageId> duplicates;
  const TreeMark before = mark_tree();
  memory_.publish(sequence, duplicates);
  note_tree(before);
  if (in_flight_.empty()) return memory_.give_back(duplicates);
  std::vector<PageId>& later = in_flight_.back().duplicates;
  later.insert(later.end(), duplicates.begin(), duplicates.end());
}

// The KV that the failed step wrote is of no worth, so nothing of these requests is published.
void Scheduler::fail_batch(const InFlight& batch, const Status& status, Deltas& out) {
  LOG_ERROR("scheduler: step {} with {} requests: {}", batch.step, batch.rows.size(), status.to_string());
  for (const Rows& rows : batch.rows) {
    Sequence& sequence = *rows.sequence;
    --sequence.batches;
    sequence.publishable = false;
    if (sequence.ended) {
      leave(sequence);
    } else {
      finish(sequence, error_finish(status), out);
    }
  }
}

// An ended sequence goes when the last batch that names it was settled.
void Scheduler::leave(Sequence& sequence) {
  if (sequence.batches > 0) return;
  let_go(sequence);
  std::erase_if(leaving_, [&](const std::unique_ptr<Sequence>& owner) { return owner.get() == &sequence; });
}

}  // namespace millrace
