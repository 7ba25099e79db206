// StageLoopStage: a StageLoop on a thread. The thread that calls run() receives and sends; the worker has another one,
// made here, with a bounded queue each way, unless the library marks its calls as short; relays call back on
// threads of their own. All of them wake the inbox.
//
// The worker is made by the library on a thread of its own; until it is ready the heartbeat reports "loading", and what
// comes waits. One that cannot be made fails the stage: it reports that in a heartbeat and run() returns.
//
// Owner: what composes the pipeline (app/). Thread safety: see stages/stage.h.
#pragma once

#include <atomic>
#include <memory>

#include "control/mailbox.h"
#include "stages/library.h"
#include "stages/stage.h"
#include "stages/stage_loop.h"

namespace millrace {

inline constexpr int kMaxMessagesPerTick = 256;  // received before the next tick
inline constexpr int kMaxReceiveMs = 20;         // or for so long
inline constexpr int kStopPollMs = 50;           // request_stop() is noticed within this time

struct StageLoopStageEnv {
  std::unique_ptr<Inbox> inbox;
  std::shared_ptr<Outbox> coordinator;
  loop::Connect connect;
  // The stage's own instances, closed by their maker. Not shared with other stages: puts of an earlier stage,
  // held while a later one works on them, would take the credits that the later one needs to go on.
  loop::Relays relays;
  std::function<uint64_t(uint64_t)> next_incarnation;                   // as in StageLoopEnv
  std::function<Result<std::string>(const wire::AdminRequest&)> admin;  // as in StageLoopEnv; empty: carry_out()
  std::function<void(const wire::Peers&)> on_peers;                     // as in StageLoopEnv, like the next one
  std::function<void()> on_lease_lost;
  std::shared_ptr<const ChainSlot> chain;  // of the worker; null: it is in none
  OpenTransferLinks transfers;             // the same; empty: it has none
  OpenTransferLinks features;              // likewise
  std::shared_ptr<SpanSink> spans;         // as in StageLoopEnv, and of the worker
};

// Commands for profiles and the log, which are the whole process's. kUnsupported: another command.
Result<std::string> carry_out(const wire::AdminRequest& command);

class StageLoopStage : public Stage {
 public:
  // The library must outlive it. Errors: a worker or rule that it does not have, and those of StageLoop::make().
  static Result<std::unique_ptr<StageLoopStage>> make(StageLoopConfig config, const Library& library,
                                                      StageLoopStageEnv env);
  ~StageLoopStage() override;
  void run() override;
  // request_stop() with a report to the coordinator, which else notices it when the lease expires. Any thread.
  void request_leave() {
    leave_.store(true, std::memory_order_release);
    request_stop();
  }
  // The same when nothing is held for others and no request is left, or after `limit_ms`. Any thread.
  void request_drain(int64_t limit_ms) { drain_ms_.store(limit_ms, std::memory_order_release); }
  // After run(): OK after a Shutdown or request_stop(), else why it ended.
  const Status& end_status() const { return end_status_; }
  // Between run()s, for tests: what is open.
  StageLoopBooks books() const { return loop_->books(); }

 private:
  StageLoopStage(const std::string& name, std::unique_ptr<Inbox> inbox, std::unique_ptr<StageLoop> loop,
                 const loop::WorkerHost* host);
  void handle(std::optional<wire::Message> message);

  const char* const thread_name_;
  std::unique_ptr<Inbox> inbox_;
  std::unique_ptr<StageLoop> loop_;
  const loop::WorkerHost* host_;  // the loop's
  Status end_status_;
  std::atomic<bool> leave_{false};
  std::atomic<int64_t> drain_ms_{-1};  // -1: it is not asked for, or was passed on
};

}  // namespace millrace
