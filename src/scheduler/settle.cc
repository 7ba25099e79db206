// One turn of the loop, and what becomes of a batch that came back.
#include <algorithm>
#include <utility>

#include "base/log.h"
#include "scheduler/scheduler.h"
#include "scheduler/stop.h"

namespace millrace {

bool Scheduler::step(int poll_timeout_ms, Deltas& out) {
  if (!in_flight_ && !sequences_.empty()) submit(plan(out), out);
  if (in_flight_) {
    const std::optional<BatchResult> result = runner_.poll(poll_timeout_ms);
    if (result) settle(*result, out);
  }
  if (!busy()) check_books_when_idle();
  return busy();
}

void Scheduler::submit(Batch batch, Deltas& out) {
  if (batch.sequences.empty()) return;
  checked_idle_ = false;
  InFlight in_flight{batch.step, {}};
  for (const SequenceStep& step : batch.sequences) {
    const auto rows = static_cast<int32_t>(step.tokens.size());
    in_flight.rows.push_back({step.request, rows, step.sample});
    sequences_.at(step.request)->rows_in_flight = rows;
  }
  const Status status = runner_.submit(std::move(batch));
  if (!status.ok()) return fail_batch(in_flight, status.with_prefix("the step was refused"), out);
  in_flight_ = std::move(in_flight);
}

void Scheduler::settle(const BatchResult& result, Deltas& out) {
  const InFlight batch = *std::exchange(in_flight_, std::nullopt);
  ++counters_.steps;
  if (!result.status.ok()) return fail_batch(batch, result.status.with_prefix("the step failed"), out);
  if (result.step != batch.step) {
    return fail_batch(batch, internal_error("the runner returned step {}; wanted {}", result.step, batch.step), out);
  }
  learn_weight_version(result.weight_version);
  std::size_t next = 0;
  for (const InFlight::Rows& rows : batch.rows) {
    Sequence& sequence = *sequences_.at(rows.request);
    sequence.rows_in_flight = 0;
    const SampledToken* sampled = nullptr;
    if (rows.sample && next < result.tokens.size() && result.tokens[next].request == rows.request) {
      sampled = &result.tokens[next++];
    }
    settle_rows(sequence, rows, sampled, out);
  }
}

// KV of more than one weight version is never published. Before the first result nothing was computed or cached at all,
// so those who run simply are of that version.
void Scheduler::learn_weight_version(uint64_t version) {
  for (Sequence* sequence : running_) {
    if (!weight_version_) sequence->weight_version = version;
    if (sequence->weight_version != version) sequence->publishable = false;
  }
  weight_version_ = version;
}

// `sampled`: the row's result; nullptr for rows that sample nothing, or that the runner forgot.
void Scheduler::settle_rows(Sequence& sequence, const InFlight::Rows& rows, const SampledToken* sampled, Deltas& out) {
  const bool failed = rows.sample && (sampled == nullptr || !sampled->status.ok());
  if (!failed) sequence.computed += rows.count;
  counters_.computed_tokens += static_cast<uint64_t>(rows.count);
  if (sequence.doom) return finish(sequence, *sequence.doom, failed ? Publish::kNo : Publish::kYes, out);
  if (failed) {
    const Status status = sampled == nullptr ? internal_error("the runner returned no token for this request")
                                             : Status(StatusCode::kInternal, sampled->status.message());
    return finish(sequence, error_finish(status), Publish::kNo, out);
  }
  // A prompt becomes useful to others chunk by chunk; a decode only at its end, because a page takes many steps.
  if (rows.count > 1 || sequence.generated() == 0) {
    std::vector<PageId> duplicates;
    memory_.publish(sequence, duplicates);
    memory_.give_back(duplicates);  // nothing is in flight here
  }
  if (rows.sample) accept_token(sequence, sampled->token, out);
}

void Scheduler::accept_token(Sequence& sequence, int32_t token, Deltas& out) {
  if (token < 0 || token >= model_.vocab_size) {
    const Status status = internal_error("the model sampled token {}; wanted 0..{}", token, model_.vocab_size - 1);
    return finish(sequence, error_finish(status), Publish::kNo, out);
  }
  sequence.tokens.push_back(token);
  std::optional<wire::Finish> end = stop_after(sequence, options_.eos_token_ids, model_.context_length);
  if (end) {
    std::vector<int32_t> last;
    if (!end->matched_token) last.push_back(token);
    return finish(sequence, std::move(*end), Publish::kYes, out, std::move(last));
  }
  wire::TokenDelta& delta = out.emplace_back();
  delta.id = sequence.id;
  delta.tokens = {token};
  delta.usage = sequence.usage();
}

// The KV that the failed step wrote is of no worth, so nothing of these requests is published.
void Scheduler::fail_batch(const InFlight& batch, const Status& status, Deltas& out) {
  LOG_ERROR("scheduler: step {} with {} requests: {}", batch.step, batch.rows.size(), status.to_string());
  for (const InFlight::Rows& rows : batch.rows) {
    Sequence& sequence = *sequences_.at(rows.request);
    sequence.rows_in_flight = 0;
    finish(sequence, sequence.doom ? *sequence.doom : error_finish(status), Publish::kNo, out);
  }
}

// The one place where a request ends. `sequence` is gone afterwards.
void Scheduler::finish(Sequence& sequence, wire::Finish end, Publish publish, Deltas& out, std::vector<int32_t> last) {
  CHECK(sequence.rows_in_flight == 0);
  wire::TokenDelta& delta = out.emplace_back();
  delta.id = sequence.id;
  delta.tokens = std::move(last);
  delta.finish = std::move(end);
  delta.usage = sequence.usage();
  ++counters_.ended;
  if (std::erase(running_, &sequence) > 0) {
    memory_.release(sequence, publish);
  } else {
    waiting_.remove(sequence);
  }
  sequences_.erase(ReqId{sequence.id});
}

// When nobody holds a page, the books must say so. If they do not, that is a bug, but no reason to stop serving: count
// it, log it, and start again from empty books.
void Scheduler::check_books_when_idle() {
  if (checked_idle_) return;
  checked_idle_ = true;
  ratio_.reset();
  const Status status = memory_.verify(true);
  if (status.ok()) return;
  ++counters_.book_rebuilds;
  LOG_ERROR("scheduler: the page books are wrong and are rebuilt: {}", status.to_string());
  memory_.rebuild();
}

}  // namespace millrace
