#include "stages/scheduler_stage.h"

#include <algorithm>
#include <mutex>
#include <thread>

#include "base/log.h"
#include "base/trace.h"
#include "wire/limits.h"

namespace millrace {
namespace {

constexpr int kMaxReceivedPerStep = 1024;  // messages; then a step, however many wait

// What the loading thread says and the stage's heartbeats repeat.
struct Loading {
  std::mutex mutex;
  std::string what = "opening the model";
  double fraction = 0;
  bool done = false;
};

}  // namespace

SchedulerStage::SchedulerStage(SchedulerOptions options, LoadRunner load, std::unique_ptr<Inbox> inbox,
                               std::shared_ptr<Outbox> detokenizer, uint64_t incarnation, SchedulerSeat seat)
    : options_(std::move(options)),
      load_(std::move(load)),
      inbox_(std::move(inbox)),
      detokenizer_(std::move(detokenizer)),
      incarnation_(incarnation),
      seat_(std::move(seat)) {}

SchedulerStage::~SchedulerStage() = default;

void SchedulerStage::beat(wire::StageStatus status) {
  status.stage = seat_.name;
  status.replica = seat_.replica;
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
    } else if (auto* order = std::get_if<wire::AdminRequest>(&*message)) {
      obey(*order);
    } else {
      LOG_WARNING("ignored a message of type {}: it is not for the scheduler", message->index());
    }
  }
}

void SchedulerStage::send(Scheduler::Deltas& out) {
  for (std::size_t begin = 0; begin < out.size(); begin += wire::kMaxBatchEntries) {
    const std::size_t end = std::min(out.size(), begin + wire::kMaxBatchEntries);
    wire::TokenBatch batch{.source = seat_.replica};
    batch.deltas.assign(std::make_move_iterator(out.begin() + static_cast<std::ptrdiff_t>(begin)),
                        std::make_move_iterator(out.begin() + static_cast<std::ptrdiff_t>(end)));
    detokenizer_.send(std::move(batch));
  }
  out.clear();
}

// ---- orders

void SchedulerStage::reply(uint64_t order, const Result<std::string>& result) {
  std::string text = result.ok() ? *result : result.status().message();
  text.resize(std::min(text.size(), wire::kMaxErrorBytes));
  detokenizer_.send(
      wire::AdminReply{.id = order, .stage = seat_.name, .code = result.status().code(), .message = std::move(text)});
}

void SchedulerStage::obey(const wire::AdminRequest& order) {
  switch (order.action) {
    case wire::AdminAction::kFlushCache: {
      const Status status = engine_->flush_when_idle(order.id, monotonic_ms() + std::max<int64_t>(order.timeout_ms, 0));
      if (!status.ok()) reply(order.id, status);
      return;
    }
    case wire::AdminAction::kStartProfile: {
      const Status status = trace::start(order.argument);
      return reply(order.id, status.ok() ? Result<std::string>("recording") : status);
    }
    case wire::AdminAction::kStopProfile:
      return reply(order.id, trace::stop(order.argument));
  }
  reply(order.id, error(StatusCode::kUnsupported, "the order {} is not known here", static_cast<int>(order.action)));
}

// ---- the loop

void SchedulerStage::beat_serving() {
  const int64_t now_ms = monotonic_ms();
  if (now_ms < next_beat_ms_) return;
  next_beat_ms_ = now_ms + kHeartbeatMs;
  const int64_t stands_ms = engine_->stands_ms(now_ms);
  const bool stalled = stands_ms > kStalledMs;
  wire::StageStatus status;
  status.state = stalled ? wire::StageState::kStalled : wire::StageState::kReady;
  if (stalled) status.message = fmt::format("no progress for {} ms", stands_ms);
  engine_->describe(status);
  if (feed_) {
    status.metrics.push_back({"kv_events_published_total", static_cast<double>(feed_->published())});
    status.metrics.push_back({"kv_events_dropped_total", static_cast<double>(feed_->dropped())});
  }
  beat(std::move(status));
}

void SchedulerStage::serve() {
  trace::name_thread("scheduler");
  engine_ = std::make_unique<GeneratingEngine>(options_, std::move(runner_));
  Scheduler& scheduler = engine_->scheduler();
  Scheduler::Deltas out;
  bool busy = false;
  while (!stop_requested()) {
    beat_serving();
    // A detokenizer that takes nothing more stops us from making more: nothing is dropped.
    if (!detokenizer_.flush() && detokenizer_.full()) {
      engine_->excuse(monotonic_ms());
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      continue;
    }
    receive_all(scheduler, out, busy ? 0 : kHeartbeatMs / 5);
    busy = engine_->step(out);
    send(out);
    // After the last deltas of the requests that a flush waited for.
    engine_->settle_flushes(monotonic_ms(), [this](uint64_t order, const auto& result) { reply(order, result); });
    if (feed_) feed_->publish(scheduler.take_events());
  }
  engine_->end_all("the scheduler is shutting down", out);
  send(out);
  engine_->fail_flushes(Status(StatusCode::kUnavailable, "the scheduler is shutting down"),
                        [this](uint64_t order, const auto& result) { reply(order, result); });
  detokenizer_.flush();
}

}  // namespace millrace
