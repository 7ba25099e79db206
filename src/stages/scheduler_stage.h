// The scheduler stage: the loop around one GeneratingEngine, a Scheduler and its Runner.
//
// It answers from its first moment on: while the model loads (on a thread of its own) it sends heartbeats with the
// progress; then it receives, plans, computes and settles, and sends one TokenBatch a step to the detokenizer.
// Everything it has to say goes through the detokenizer, so that news of a request stays in order.
//
// Its heartbeat says whether it moves: a scheduler that has work while for kStalledMs neither a step ended nor the
// runner's progress() changed is stalled; a long prefill, which moves, is not.
//
// Orders of the operator never hold up the loop: a flush of the cache waits beside it for an idle moment.
//
// Thread safety: see stages/stage.h.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "stages/generating/generating_engine.h"
#include "stages/kv_event_feed.h"
#include "stages/stage.h"

namespace millrace {

inline constexpr int kStalledMs = 1500;  // heartbeats add kHeartbeatMs: told within 2 s

// Which one of several equal schedulers this is.
struct SchedulerSeat {
  std::string name = "scheduler";
  uint32_t replica = 0;
};

class SchedulerStage : public Stage {
 public:
  SchedulerStage(SchedulerOptions options, LoadRunner load, std::unique_ptr<Inbox> inbox,
                 std::shared_ptr<Outbox> detokenizer, uint64_t incarnation, SchedulerSeat seat = {});
  ~SchedulerStage() override;

  // What changes in the cache goes there too (SchedulerOptions::cache.events). Before run().
  void publish_events(std::unique_ptr<KvEventFeed> feed) { feed_ = std::move(feed); }
  void run() override;
  // After run(): why the model could not be loaded, or OK.
  const Status& load_status() const { return load_status_; }

 private:
  bool wait_for_model();
  void serve();
  void receive_all(Scheduler& scheduler, Scheduler::Deltas& out, int wait_ms);
  void send(Scheduler::Deltas& out);
  void beat(wire::StageStatus status);
  void beat_serving();
  void obey(const wire::AdminRequest& order);
  void reply(uint64_t order, const Result<std::string>& result);

  const SchedulerOptions options_;
  LoadRunner load_;
  std::unique_ptr<Inbox> inbox_;
  PatientOutbox detokenizer_;
  const uint64_t incarnation_;
  const SchedulerSeat seat_;
  std::unique_ptr<KvEventFeed> feed_;
  std::unique_ptr<Runner> runner_;  // until it serves
  std::unique_ptr<GeneratingEngine> engine_;
  Status load_status_;

  int64_t next_beat_ms_ = 0;  // while it serves
};

}  // namespace millrace
