// BatchesInFlight: the batches that the runner has and that were not settled, the oldest first; at most
// RunnerFacts::depth.
//
// What it is for: a page that a batch in flight may still write must not be allocated again. Ended sequences wait
// in Requests for the last batch that names them; pages that publishing made superfluous wait here for the newest.
//
// Owner: the scheduler. Thread safety: none.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <vector>

#include "runner/runner.h"
#include "scheduler/memory.h"
#include "scheduler/plan.h"
#include "scheduler/step_cost.h"

namespace millrace {

struct BatchInFlight {
  uint64_t step = 0;
  uint64_t weight_version = 0;  // 0: whichever the runner serves
  std::vector<PlannedRows> rows;
  bool decodes = false;            // among its rows are those of decodes
  bool loads = false;              // it brings pages back from the host tier
  int64_t begun_us = 0;            // when the runner came to it
  std::vector<PageId> duplicates;  // held pages that this batch may name, and that nobody needs after it
};

class BatchesInFlight {
 public:
  // What is passed outlives it; `now_us` is the scheduler's clock.
  BatchesInFlight(Runner& runner, SequenceMemory& memory, const std::function<int64_t()>& now_us)
      : runner_(runner), memory_(memory), now_us_(now_us) {}

  bool empty() const { return batches_.empty(); }
  std::size_t size() const { return batches_.size(); }
  // Of at least one.
  const BatchInFlight& oldest() const {
    CHECK(!empty());
    return batches_.front();
  }
  const BatchInFlight& newest() const {
    CHECK(!empty());
    return batches_.back();
  }
  // What the planner has to know of them.
  WorkInFlight work() const;

  // Gives the runner the plan with the page copies that are due, and takes its rows. An error: the runner refused the
  // batch, and plan.rows are as they were.
  Status submit(BatchPlan& plan);
  // The oldest, which came back; its duplicates are free.
  BatchInFlight take_oldest();
  // Held pages that nobody needs when the newest batch was settled; at once, when there is none.
  void release_later(std::span<const PageId> pages);

  // Milliseconds until it is time to plan another batch; 0: now.
  int plan_in_ms(const StepCost& cost) const;

 private:
  Runner& runner_;
  SequenceMemory& memory_;
  const std::function<int64_t()>& now_us_;
  std::deque<BatchInFlight> batches_;
  uint64_t next_step_ = 0;
};

}  // namespace millrace
