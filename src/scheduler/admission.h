// AdmissionControl: which waiting requests get pages now and, with the priority policy, which running ones they
// replace.
//
// One request is admitted when pages for all its tokens can be had now and the running ones, with it, can still grow as
// NewTokenRatio expects. A request that runs alone may use the whole pool, whatever the estimate says: so the queue
// always moves. docs/scheduler.md, "Admission".
//
// Owner: the scheduler. Thread safety: none.
#pragma once

#include <cstdint>
#include <vector>

#include "runner/runner.h"
#include "scheduler/memory.h"
#include "scheduler/new_token_ratio.h"
#include "scheduler/options.h"
#include "scheduler/requests.h"

namespace millrace {

class AdmissionControl {
 public:
  // What is passed outlives it.
  AdmissionControl(const SchedulerOptions& options, const RunnerFacts& model, SequenceMemory& memory,
                   Requests& requests, const NewTokenRatio& ratio, SchedulerFacts& counters)
      : options_(options), model_(model), memory_(memory), requests_(requests), ratio_(ratio), counters_(counters) {}

  struct Outcome {
    bool refused = false;  // one did not fit and waits on
    // It would fit in the place of others that a batch in flight names: plan nothing until that one is settled.
    bool hold_back = false;
  };
  // Starts those that fit. `in_flight`: a batch is, so nobody can be preempted.
  Outcome admit(bool in_flight);

 private:
  Admission try_admit(Sequence& sequence, int64_t& reserved);
  void start(Sequence& sequence);
  void look_up(Sequence& sequence);
  bool is_being_computed(const Sequence& sequence) const;
  int32_t growth_estimate(const Sequence& sequence) const;
  int64_t growth_of_running() const;
  int64_t pages_within_reach(const Sequence& sequence, int64_t reserved) const;

  // ---- preemption.cc ----
  std::vector<Sequence*> preemption_victims(const Sequence& sequence) const;
  bool preempt_for(Sequence& sequence, bool in_flight, Outcome& outcome);

  const SchedulerOptions& options_;
  const RunnerFacts& model_;
  SequenceMemory& memory_;
  Requests& requests_;
  const NewTokenRatio& ratio_;
  SchedulerFacts& counters_;
  Sequence* refused_ = nullptr;  // the first that this pass did not admit
};

}  // namespace millrace
