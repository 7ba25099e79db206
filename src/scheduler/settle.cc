#include "scheduler/settle.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/trace.h"
#include "scheduler/stop.h"

namespace millrace {

void Settlement::settle(BatchResult result, bool kv_lost, Deltas& out) {
  trace::Span span("settle", "scheduler");
  span.note("sequences", static_cast<int64_t>(in_flight_.oldest().rows.size()));
  const BatchInFlight batch = in_flight_.take_oldest();
  ++counters_.steps;
  counters_.compute_us += static_cast<uint64_t>(std::max<int64_t>(0, result.compute_us));
  counters_.idle_us += static_cast<uint64_t>(std::max<int64_t>(0, result.idle_us));
  if (result.status.ok() && result.step != batch.step) {
    result.status = internal_error("the runner returned step {}; wanted {}", result.step, batch.step);
  }
  if (result.status.ok() && batch.weight_version != 0 && result.weight_version != batch.weight_version) {
    result.status = internal_error("the runner computed with the weight version {}; wanted {}", result.weight_version,
                                   batch.weight_version);
  }
  if (!result.status.ok()) {
    const bool again = kv_lost && result.status.code() == StatusCode::kUnavailable;
    return fail_batch(batch, result.status.with_prefix("the step failed"), again, out);
  }

  if (memory_.weight_version() == 0) memory_.set_weight_version(result.weight_version);
  int32_t rows_computed = 0;
  std::size_t next = 0;
  for (const PlannedRows& rows : batch.rows) {
    SampledToken* answer = nullptr;
    const bool answers = rows.sample || rows.scores > 0;
    if (answers && next < result.tokens.size() && result.tokens[next].request == rows.sequence->id) {
      answer = &result.tokens[next++];
    }
    rows_computed += rows.count;
    settle_rows(rows, answer, result, out);
  }
  if (rows_computed > 0) cost_.observe(rows_computed, result.compute_us);
}

// `answer`: the row's result; nullptr for rows that give none, or that the runner forgot.
void Settlement::settle_rows(const PlannedRows& rows, SampledToken* answer, const BatchResult& result, Deltas& out) {
  Sequence& sequence = *rows.sequence;
  CHECK(sequence.batches > 0);
  --sequence.batches;
  counters_.computed_tokens += static_cast<uint64_t>(rows.count);
  const bool prefill = sequence.computed < sequence.prefill_end;
  (prefill ? counters_.prefill_rows : counters_.decode_rows) += static_cast<uint64_t>(rows.count);

  const Status status = check_answer(rows, answer);
  // KV of more than one weight version is never published. Before anything is computed it is of none.
  if (sequence.computed == 0) sequence.weight_version = result.weight_version;
  if (!status.ok() || sequence.weight_version != result.weight_version) sequence.publishable = false;
  // A row that was computed for a token that nobody knows any more counts for nothing.
  sequence.computed = std::min(sequence.computed + rows.count, sequence.ended ? sequence.length() : INT32_MAX);
  if (sequence.ended) {
    counters_.wasted_rows += static_cast<uint64_t>(rows.count);
    return requests_.leave(sequence);
  }
  if (!status.ok()) return requests_.end(sequence, error_finish(status), out);
  if (prefill) publish(sequence);
  if (sequence.capture_next < sequence.computed) {
    sequence.capture_next = sequence.capture->next(sequence.computed);
    limit_match(sequence);
  }

  wire::TokenDelta delta;
  take_scores(sequence, rows, answer, delta);
  std::optional<wire::Finish> end;
  if (rows.sample) {
    take_forced(sequence, rows.forced, result.weight_version, out);
    end = take_token(sequence, *answer, result.weight_version, delta);
  } else if (sequence.computed == sequence.length()) {  // nothing was to be generated
    end.emplace().reason = wire::FinishReason::kLength;
  }
  if (end) return requests_.end(sequence, std::move(*end), out, std::move(delta));
  if (delta.tokens.empty() && delta.prompt_logprobs.empty()) return;
  delta.id = sequence.id;
  delta.usage = sequence.usage();
  delta.weight_version = sequence.last_token_version;
  out.push_back(std::move(delta));
}

// Publishes what is computed. Pages of the sequence's own that were cached already may be named by batches in flight;
// they are given back when the newest of those was polled.
void Settlement::publish(Sequence& sequence) {
  std::vector<PageId> duplicates;
  memory_.publish(sequence, duplicates);
  in_flight_.release_later(duplicates);
}

// The KV that the failed step wrote is of no worth, so nothing of these requests is published. `again`: it failed with
// the loss of all KV, which is mostly no fault of its requests: they are computed again from their tokens.
void Settlement::fail_batch(const BatchInFlight& batch, const Status& status, bool again, Deltas& out) {
  LOG_ERROR("scheduler: step {} with {} requests: {}", batch.step, batch.rows.size(), status.to_string());
  for (const PlannedRows& rows : batch.rows) {
    Sequence& sequence = *rows.sequence;
    CHECK(sequence.batches > 0);
    --sequence.batches;
    sequence.publishable = false;
    if (sequence.ended) {
      requests_.leave(sequence);
    } else if (again && sequence.kv_losses < kMaxKvLosses) {
      if (rows.sample) {  // of the batches that fail together, each has one
        CHECK(sequence.pending > rows.forced);
        sequence.pending -= 1 + rows.forced;
        sequence.tokens.resize(sequence.tokens.size() - 1 - static_cast<std::size_t>(rows.forced));
      }
    } else {
      requests_.end(sequence, error_finish(status), out);
    }
  }
}

}  // namespace millrace
