// GeneratingEngine: a Scheduler over its Runner, with what a loop around them needs: receive, abort, step, the stall
// check, a heartbeat's numbers, cache flushes that wait for idleness, and an end that ends every request. Two loops
// drive one: SchedulerStage (text serving, typed batches) and the worker `generate` of pipelines (payloads).
//
// scheduler/scheduler.h specifies what `out` receives for each request.
// Owner: the loop that drives it. Thread safety: one thread, the loop's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runner/runner.h"
#include "scheduler/scheduler.h"
#include "stages/worker.h"

namespace millrace {

using LoadRunner = std::function<Result<std::unique_ptr<Runner>>(const LoadProgress&)>;

inline constexpr int kStepPollMs = 50;  // one step waits so long for a batch that computes; then it may be asked again
inline constexpr int kEngineStopMs = 1500;      // at an end, how long the batch in flight is waited for
inline constexpr std::size_t kMaxFlushes = 16;  // admin commands that wait for an idle moment

class GeneratingEngine {
 public:
  using Deltas = Scheduler::Deltas;

  // Wrong options are a programmer error, as in Scheduler.
  GeneratingEngine(SchedulerOptions options, std::unique_ptr<Runner> runner);

  Scheduler& scheduler() { return scheduler_; }
  const Scheduler& scheduler() const { return scheduler_; }
  RunnerFacts model() const { return runner_->facts(); }
  // Moves while a batch computes. Any thread.
  uint64_t runner_progress() const { return runner_->progress(); }

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

  // Flushes the cache at the next idle moment, or replies kConflict when `deadline_ms` comes first. The reply to each
  // command goes to `reply` of settle_flushes(), which is called after every step.
  using Reply = std::function<void(uint64_t command, const Result<std::string>& reply)>;
  Status flush_when_idle(uint64_t command, int64_t deadline_ms);  // kResourceExhausted: kMaxFlushes wait
  void settle_flushes(int64_t now_ms, const Reply& reply);
  void fail_flushes(const Status& why, const Reply& reply);

  // Ends every request with kUnavailable and `why`. What is in flight is waited for, kEngineStopMs at most; a runner
  // that never answers is left behind.
  void end_all(const std::string& why, Deltas& out);

 private:
  std::unique_ptr<Runner> runner_;
  Scheduler scheduler_;
  uint64_t last_steps_ = 0;
  uint64_t last_progress_ = 0;
  int64_t moved_ms_ = 0;

  struct Flush {
    uint64_t command = 0;
    int64_t deadline_ms = 0;
  };
  std::vector<Flush> flushes_;
};

}  // namespace millrace
