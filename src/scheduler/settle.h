// Settlement: what becomes of a batch that came back. Tokens are appended and told, stop rules are applied, whole pages
// of prompts are published, and requests end.
//
// Owner: the scheduler. Thread safety: none.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "runner/runner.h"
#include "scheduler/in_flight.h"
#include "scheduler/memory.h"
#include "scheduler/options.h"
#include "scheduler/requests.h"
#include "scheduler/step_cost.h"

namespace millrace {

inline constexpr int32_t kMaxKvLosses = 3;

class Settlement {
 public:
  using Deltas = Requests::Deltas;

  // What is passed outlives it. It counts what was computed in `counters`, and teaches `cost`.
  Settlement(const SchedulerOptions& options, const RunnerFacts& model, SequenceMemory& memory, Requests& requests,
             BatchesInFlight& in_flight, StepCost& cost, SchedulerFacts& counters)
      : options_(options),
        model_(model),
        memory_(memory),
        requests_(requests),
        in_flight_(in_flight),
        cost_(cost),
        counters_(counters) {}

  // `result` is of the oldest batch in flight. A row that failed ends its request; a step that failed all of its batch,
  // but for one that failed with kUnavailable because all KV was lost (`kv_lost`): there a request ends only if it was
  // in flight at kMaxKvLosses of them, and may be their cause. The others are for the caller to retract.
  void settle(BatchResult result, bool kv_lost, Deltas& out);

 private:
  void settle_rows(const PlannedRows& rows, SampledToken* answer, const BatchResult& result, Deltas& out);
  void fail_batch(const BatchInFlight& batch, const Status& status, bool again, Deltas& out);
  void publish(Sequence& sequence);

  // ---- take_answer.cc
  Status check_answer(const PlannedRows& rows, const SampledToken* answer) const;
  void take_scores(Sequence& sequence, const PlannedRows& rows, SampledToken* answer, wire::TokenDelta& delta);
  void take_forced(Sequence& sequence, int32_t count, uint64_t version, Deltas& out);
  std::optional<wire::Finish> take_token(Sequence& sequence, SampledToken& answer, uint64_t version,
                                         wire::TokenDelta& delta);

  const SchedulerOptions& options_;
  const RunnerFacts& model_;
  SequenceMemory& memory_;
  Requests& requests_;
  BatchesInFlight& in_flight_;
  StepCost& cost_;
  SchedulerFacts& counters_;
};

}  // namespace millrace
