// GeneratingEngine: a Scheduler over its Runner, with what the worker `generate` needs around them: step, progress, a
// heartbeat's numbers, and cache flushes that wait for idleness.
//
// scheduler/scheduler.h specifies what `out` receives for each request.
// Owner: the worker. Thread safety: the worker's thread, but for runner_progress().
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runner/runner.h"
#include "scheduler/scheduler.h"
#include "stages/worker.h"

namespace millrace {

using LoadRunner = std::function<Result<std::unique_ptr<Runner>>(const LoadProgress&)>;

inline constexpr int kStepPollMs = 50;  // one step waits so long for a batch that computes; then it may be asked again
inline constexpr std::size_t kMaxFlushes = 16;      // admin commands that wait for an idle moment
inline constexpr std::size_t kMaxKnownWeights = 4;  // versions whose checksums are remembered

class GeneratingEngine {
 public:
  using Deltas = Scheduler::Deltas;

  // Wrong options are a programmer error, as in Scheduler.
  GeneratingEngine(SchedulerOptions options, std::unique_ptr<Runner> runner);

  Scheduler& scheduler() { return scheduler_; }
  const Scheduler& scheduler() const { return scheduler_; }
  Runner& runner() { return *runner_; }
  RunnerFacts model() const { return runner_->facts(); }
  // Moves while a batch computes. Any thread.
  uint64_t runner_progress() const { return runner_->progress(); }

  // Plans, submits and settles, waiting `poll_ms` at most; idle, it checks its books at once. True: there is more work.
  bool step(Deltas& out, int poll_ms = kStepPollMs);

  // Weights that may serve later; those of the start are known.
  void note_weights(uint64_t version, uint64_t checksum);
  // Of weights that serve or were noted since; 0: unknown.
  uint64_t weights_checksum(uint64_t version) const;
  // The numbers of a heartbeat: steps, queues, pages, weights, metrics.
  void describe(wire::StageStatus& status) const;

  // Flushes the cache at the next idle moment, or replies kConflict when `deadline_ms` comes first. The reply to each
  // command goes to `reply` of settle_flushes(), which is called after every step.
  using Reply = std::function<void(uint64_t command, const Result<std::string>& reply)>;
  Status flush_when_idle(uint64_t command, int64_t deadline_ms);  // kResourceExhausted: kMaxFlushes wait
  void settle_flushes(int64_t now_ms, const Reply& reply);

 private:
  std::unique_ptr<Runner> runner_;
  Scheduler scheduler_;

  struct Flush {
    uint64_t command = 0;
    int64_t deadline_ms = 0;
  };
  std::vector<Flush> flushes_;
  std::map<uint64_t, uint64_t> checksums_;  // by version: the serving weights', and some that were staged since
};

}  // namespace millrace
