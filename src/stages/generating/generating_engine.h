// GeneratingEngine: a Scheduler over its Runner, as whoever drives one needs them together: receive, abort, step,
// whether it moves, what a heartbeat tells of it, and an end that lets every request hear its own. Two loops drive one:
// SchedulerStage (text serving, typed batches) and the worker `generate` of pipelines (payloads).
//
// What comes out of `out`, for each request, is said in scheduler/scheduler.h.
// Owner: the loop that drives it. Thread safety: one thread, the loop's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "runner/runner.h"
#include "scheduler/scheduler.h"

namespace millrace {

// Called from the loading thread with what is being done and 0..1.
using LoadProgress = std::function<void(const std::string& what, double fraction)>;
using LoadRunner = std::function<Result<std::unique_ptr<Runner>>(const LoadProgress&)>;

inline constexpr int kStepPollMs = 50;  // one step waits so long for a batch that computes; then it may be asked again
inline constexpr int kEngineStopMs = 1500;  // at an end, how long the batch in flight is waited for

class GeneratingEngine {
 public:
  using Deltas = Scheduler::Deltas;

  // Wrong options are a programmer error, as in Scheduler.
  GeneratingEngine(SchedulerOptions options, std::unique_ptr<Runner> runner);

  Scheduler& scheduler() { return scheduler_; }
  const Scheduler& scheduler() const { return scheduler_; }
  RunnerFacts model() const { return runner_->facts(); }

  // Plans, submits and settles, waiting kStepPollMs at most; idle, it checks its books at once. True: there is more
  // work.
  bool step(Deltas& out);

  // For how long it has had work while neither a step ended nor the runner's progress() changed, as seen by the calls
  // of this function: a long prefill moves, a hung batch does not.
  int64_t stands_ms(int64_t now_ms);
  // What keeps it waiting is not its own: the clock of stands_ms() starts again.
  void excuse(int64_t now_ms) { moved_ms_ = now_ms; }

  // The numbers of a heartbeat: steps, queues, pages, weights, metrics.
  void describe(wire::StageStatus& status) const;

  // Ends every request with kUnavailable and `why`. What is in flight is waited for, kEngineStopMs at most; a runner
  // that never answers is left behind.
  void end_all(const std::string& why, Deltas& out);

 private:
  std::unique_ptr<Runner> runner_;
  Scheduler scheduler_;
  uint64_t last_steps_ = 0;
  uint64_t last_progress_ = 0;
  int64_t moved_ms_ = 0;
};

}  // namespace millrace
