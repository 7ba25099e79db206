// The scheduler stage: the loop around one Scheduler and its Runner.
//
// It answers from its first moment on: while the model loads (on a thread of its own) it sends heartbeats with the
// progress; then it receives, plans, computes and settles, and sends one TokenBatch a step to the detokenizer.
// Everything it has to say goes through the detokenizer, so that news of a request stays in order.
//
// Thread safety: see stages/stage.h.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "runner/runner.h"
#include "scheduler/scheduler.h"
#include "stages/stage.h"

namespace millrace {

// Called from the loading thread with what is being done and 0..1.
using LoadProgress = std::function<void(const std::string& what, double fraction)>;
using LoadRunner = std::function<Result<std::unique_ptr<Runner>>(const LoadProgress&)>;

class SchedulerStage : public Stage {
 public:
  SchedulerStage(SchedulerOptions options, LoadRunner load, std::unique_ptr<Inbox> inbox,
                 std::shared_ptr<Outbox> detokenizer, uint64_t incarnation);
  ~SchedulerStage() override;

  void run() override;
  // After run(): why the model could not be loaded, or OK.
  const Status& load_status() const { return load_status_; }

 private:
  bool wait_for_model();
  void serve();
  void receive_all(Scheduler& scheduler, Scheduler::Deltas& out, int wait_ms);
  void send(Scheduler::Deltas& out);
  void beat(wire::StageStatus status);

  const SchedulerOptions options_;
  LoadRunner load_;
  std::unique_ptr<Inbox> inbox_;
  PatientOutbox detokenizer_;
  const uint64_t incarnation_;
  std::unique_ptr<Runner> runner_;
  Status load_status_;
};

}  // namespace millrace
