// BatchPlanner: what the next step computes: every decode gets its row, then waiting requests are admitted, then the
// rest of the token budget goes to prefills. While a batch is in flight, the plan is for the one after it: a sequence
// then stands where it will stand when that batch was settled, and the token that it samples is kTokenInFlight.
//
// A runner without token_in_flight (a chain of ranges) has several batches in flight, and a decode gets its next row
// when its token is back: the decodes are divided into micro-batches (share.h), and those that have waited longest go
// first. Chunks of one prompt may all be in flight, because a chunk reads the KV of those before it only.
//
// Owner: the scheduler. Thread safety: none.
#pragma once

#include <cstdint>
#include <vector>

#include "base/shared_span.h"
#include "runner/runner.h"
#include "scheduler/admission.h"
#include "scheduler/memory.h"
#include "scheduler/new_token_ratio.h"
#include "scheduler/options.h"
#include "scheduler/requests.h"
#include "scheduler/step_cost.h"

namespace millrace {

// The rows of one sequence in a batch: what is needed to settle them. A sequence lives until the last batch that names
// it was settled (Requests owns it), so this points at it: its id may be another's by then.
struct PlannedRows {
  Sequence* sequence = nullptr;
  int32_t count = 0;
  bool sample = false;
  int32_t forced = 0;       // of the rows, behind the first: tokens of a forced run, drawn by this batch
  int32_t score_begin = 0;  // the first prompt position that is scored
  int32_t scores = 0;       // how many are
};

struct BatchPlan {
  Batch batch;
  std::vector<PlannedRows> rows;
  int32_t decodes = 0;  // of `rows`: those that come first
  bool empty() const { return rows.empty() && batch.writes.empty(); }
};

// What the runner has while a batch is planned.
struct WorkInFlight {
  bool any = false;
  uint64_t newest_step = 0;  // of the batch submitted last
  int32_t with_decodes = 0;  // batches
};

class BatchPlanner {
 public:
  // What is passed outlives it.
  BatchPlanner(const SchedulerOptions& options, const RunnerFacts& model, SequenceMemory& memory, Requests& requests,
               const StepCost& cost, SchedulerFacts& counters);

  // Empty: there is nothing to compute, or not before the batch in flight was settled.
  BatchPlan plan(const WorkInFlight& work);

  // Admission starts from its careful estimate again.
  void reset_estimate() { ratio_.reset(); }
  double new_token_ratio() const { return ratio_.value(); }

 private:
  bool needs_row(const Sequence& sequence, const WorkInFlight& work) const;
  std::vector<Sequence*> choose_decodes(const WorkInFlight& work) const;
  int32_t prefill_budget(int32_t decodes) const;
  int32_t add_decodes(const WorkInFlight& work, BatchPlan& plan) const;
  void add_rows(Sequence& sequence, int32_t count, BatchPlan& plan) const;
  void fill_sampling(Sequence& sequence, SequenceStep& step) const;

  // ---- retraction.cc ----
  enum class DecodePages { kReady, kRetracted, kWaitForSettle };
  DecodePages allocate_for_decodes(const WorkInFlight& work);
  int32_t pages_lacking(const WorkInFlight& work) const;
  void update_ratio(const WorkInFlight& work, bool retracted);
  Sequence& retraction_victim() const;

  const SchedulerOptions& options_;
  const RunnerFacts& model_;
  SequenceMemory& memory_;
  Requests& requests_;
  const StepCost& cost_;
  SchedulerFacts& counters_;
  const SharedSpan<int32_t> suppressed_;  // of the options
  const int32_t depth_;                   // batches in flight at most
  NewTokenRatio ratio_;
  AdmissionControl admission_;
  bool hold_back_ = false;  // nothing is planned until nothing is in flight
};

}  // namespace millrace
