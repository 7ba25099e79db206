#include "stages/scheduler_stage.h"

#include <algorithm>
#include <mutex>
#include <thread>

#include "base/log.h"
#include "wire/limits.h"

namespace millrace {
namespace {

constexpr int kMaxReceivedPerStep = 1024;  // messages; then a step, however many wait
constexpr int kStalledMs = 120'000;        // one step may take long on a large model; longer than this it hangs
constexpr int kStopMs = 1500;              // at a stop, how long the batch in flight is waited for
constexpr int kPollMs = 50;                // heartbeats go on while a long batch computes

// What the loading thread says and the stage's heartbeats repeat.
struct Loading {
  std::mutex mutex;
  std::string what = "opening the model";
  double fraction = 0;
  bool done = false;
};

}  // namespace

SchedulerStage::SchedulerStage(SchedulerOptions options, LoadRunner load, std::unique_ptr<Inbox> inbox,
                               std::shared_ptr<Outbox> detokenizer, uint64_t incarnation)
    : options_(std::move(options)),
      load_(std::move(load)),
      inbox_(std::move(inbox)),
      detokenizer_(std::move(detokenizer)),
      incarnation_(incarnation) {}

SchedulerStage::~SchedulerStage() = default;

void SchedulerStage::beat(wire::StageStatus status) {
  status.stage = "scheduler";
  status.incarnation = incarnation_;
  // Why the model could not be loaded is said once.
  if (status.state == wire::StageState::kFailed) return detokenizer_.send(std::move(status));
  detokenizer_.send_unless_full(std::move(status));
}

void SchedulerStage::run() {
  if (!wait_for_model()) return;
  serve();
}

// False: the model could not be loaded; load_status_ tells why.
bool SchedulerStage::wait_for_model() {
  Loading loading;
  std::thread loader([&] {
    auto runner = load_([&](const std::string& what, double fraction) {
      std::lock_guard lock(loading.mutex);
      loading.what = what;
      loading.fraction = fraction;
    });
    std::lock_guard lock(loading.mutex);
    if (runner.ok()) {
      runner_ = std::move(runner).value();
    } else {
      load_status_ = runner.status();
    }
    loading.done = true;
  });
  int64_t next_beat_ms = 0;
  for (bool done = false; !done;) {
    wire::StageStatus status{.state = wire::StageState::kLoading};
    {
      std::lock_guard lock(loading.mutex);
      done = loading.done;
      status.message = loading.what;
      status.progress = loading.fraction;
    }
    if (monotonic_ms() >= next_beat_ms) {
      beat(std::move(status));
      next_beat_ms = monotonic_ms() + kHeartbeatMs;
    }
    if (!done) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  loader.join();
  if (load_status_.ok()) return true;
  beat({.state = wire::StageState::kFailed, .message = load_status_.message().substr(0, wire::kMaxErrorBytes)});
  return false;
}

// Takes what waits in the inbox, waiting up to wait_ms for the first message.
void SchedulerStage::receive_all(Scheduler& scheduler, Scheduler::Deltas& out, int wait_ms) {
  for (int i = 0; i < kMaxReceivedPerStep; ++i) {
    auto message = inbox_->receive(i == 0 ? wait_ms : 0);
    if (!message) return;
    if (auto* request = std::get_if<wire::TokenizedRequest>(&*message)) {
      scheduler.receive(std::move(*request), out);
    } else if (auto* abort = std::get_if<wire::AbortRequest>(&*message)) {
      scheduler.abort(abort->id, out);
    } else {
      LOG_WARNING("ignored a message of type {}: it is not for the scheduler", message->index());
    }
  }
}

void SchedulerStage::send(Scheduler::Deltas& out) {
  for (std::size_t begin = 0; begin < out.size(); begin += wire::kMaxBatchEntries) {
    const std::size_t end = std::min(out.size(), begin + wire::kMaxBatchEntries);
    wire::TokenBatch batch;
    batch.deltas.assign(std::make_move_iterator(out.begin() + static_cast<std::ptrdiff_t>(begin)),
                        std::make_move_iterator(out.begin() + static_cast<std::ptrdiff_t>(end)));
    detokenizer_.send(std::move(batch));
  }
  out.clear();
}

void SchedulerStage::serve() {
  Scheduler scheduler(options_, *runner_);
  Scheduler::Deltas out;
  int64_t next_beat_ms = 0;
  bool busy = false;
  uint64_t last_steps = 0;
  int64_t moved_ms = monotonic_ms();
  while (!stop_requested()) {
    if (monotonic_ms() >= next_beat_ms) {
      const SchedulerFacts facts = scheduler.facts();
      if (facts.steps != last_steps || !scheduler.busy()) {
        last_steps = facts.steps;
        moved_ms = monotonic_ms();
      }
      const bool stalled = monotonic_ms() - moved_ms > kStalledMs;
      beat({.state = stalled ? wire::StageState::kStalled : wire::StageState::kReady,
            .steps = facts.steps,
            .running = facts.running,
            .waiting = facts.waiting,
            .pages_total = facts.pages_total,
            .pages_free = facts.pages_free,
            .pages_cached = facts.pages_cached,
            .page_size = facts.page_size});
      next_beat_ms = monotonic_ms() + kHeartbeatMs;
    }
    // A detokenizer that takes nothing more stops us from making more: nothing is dropped.
    if (!detokenizer_.flush() && detokenizer_.full()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      continue;
    }
    receive_all(scheduler, out, busy ? 0 : kHeartbeatMs / 5);
    busy = scheduler.step(kPollMs, out);
    send(out);
  }
  scheduler.fail_all(Status(StatusCode::kUnavailable, "the scheduler is shutting down"), out);
  // What is in flight is waited for, so that every request gets its end; a runner that never answers is left behind.
  const int64_t end_ms = monotonic_ms() + kStopMs;
  while (scheduler.busy() && monotonic_ms() < end_ms) scheduler.step(kPollMs, out);
  send(out);
  detokenizer_.flush();
}

}  // namespace millrace
