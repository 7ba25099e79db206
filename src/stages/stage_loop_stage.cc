#include "stages/stage_loop_stage.h"

#include <algorithm>

#include "base/log.h"
#include "stages/loop/thread_worker_host.h"

namespace millrace {

Result<std::unique_ptr<StageLoopStage>> StageLoopStage::make(StageLoopConfig config, const Library& library,
                                                             StageLoopStageDoors doors) {
  CHECK(doors.inbox);
  const StageSpec& spec = config.spec;
  const auto maker = library.workers.find(spec.worker);
  if (maker == library.workers.end()) {
    return error(StatusCode::kNotFound, "{}: worker '{}' is not in the library", spec.name, spec.worker);
  }
  const Library::WorkerSeat seat{.stage = spec.name,
                                 .replica = config.self.replica,
                                 .threads = spec.resources.threads,
                                 .memory_mib = spec.resources.memory_mib,
                                 .replicas = spec.replicas,
                                 .streams = spec.terminal || !spec.stream_to.empty(),
                                 .to_client = spec.terminal && spec.stream_to.empty()};
  std::shared_ptr<Waker> waker = doors.inbox->waker();
  std::function<void()> wake = [waker] { waker->wake(); };
  auto host = std::make_unique<loop::ThreadWorkerHost>(
      [make = maker->second, args = spec.args, seat] { return make(args, seat); }, wake);
  const loop::WorkerHost* host_view = host.get();
  StageLoopDoors loop_doors{.coordinator = std::move(doors.coordinator),
                            .connect = std::move(doors.connect),
                            .relays = std::move(doors.relays),
                            .worker = std::move(host),
                            .wake = wake,
                            .next_incarnation = std::move(doors.next_incarnation),
                            .admin = std::move(doors.admin)};
  ASSIGN_OR_RETURN(std::unique_ptr<StageLoop> loop, StageLoop::make(std::move(config), library, std::move(loop_doors)));
  return std::unique_ptr<StageLoopStage>(
      new StageLoopStage(std::move(doors.inbox), std::move(doors.aborts), std::move(loop), host_view));
}

StageLoopStage::StageLoopStage(std::unique_ptr<Inbox> inbox, std::unique_ptr<AbortSubscription> aborts,
                               std::unique_ptr<StageLoop> loop, const loop::WorkerHost* host)
    : inbox_(std::move(inbox)), aborts_(std::move(aborts)), loop_(std::move(loop)), host_(host) {}

StageLoopStage::~StageLoopStage() = default;

// A hint does what the abort itself does, only sooner: it overtakes what waits in the inbox. One that overtakes even
// its request leaves a tombstone, at which the request ends.
void StageLoopStage::hear_hints() {
  for (int heard = 0; aborts_ && heard < kMaxMessagesPerTick; ++heard) {
    const std::optional<ReqId> id = aborts_->next();
    if (!id) return;
    loop_->handle(wire::AbortRequest{*id}, monotonic_ms());
  }
}

void StageLoopStage::run() {
  int64_t wake_ms = loop_->tick(monotonic_ms());
  while (!loop_->ended() && !stop_requested()) {
    const int64_t wait_ms = std::clamp<int64_t>(wake_ms - monotonic_ms(), 0, kStopPollMs);
    std::optional<wire::Message> message = inbox_->receive(static_cast<int>(wait_ms));
    hear_hints();
    const int64_t until_ms = monotonic_ms() + kMaxHearMs;
    for (int heard = 1; message; ++heard) {
      const int64_t now_ms = monotonic_ms();
      loop_->handle(std::move(*message), now_ms);
      if (heard == kMaxMessagesPerTick || now_ms >= until_ms) break;
      message = inbox_->receive(0);
    }
    wake_ms = loop_->tick(monotonic_ms());
    if (host_->state() == loop::WorkerHost::State::kFailed && !loop_->ended()) {
      loop_->fail_stage(host_->failure());
    }
  }
  end_status_ = loop_->end_status();
  if (!end_status_.ok()) LOG_ERROR("the stage ends: {}", end_status_.to_string());
}

}  // namespace millrace
