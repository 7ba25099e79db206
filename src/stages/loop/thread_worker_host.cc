#include "stages/loop/thread_worker_host.h"

#include <algorithm>
#include <exception>

#include "base/clock.h"
#include "base/trace.h"
#include "stages/stage.h"

namespace millrace::loop {
namespace {

const char* span_name(WorkEvent::Kind kind) {
  static constexpr const char* kNames[] = {"start", "generate", "chunk", "chunks_done", "drop", "admin", "lease_lost"};
  return kNames[static_cast<std::size_t>(kind)];
}

}  // namespace

ThreadWorkerHost::ThreadWorkerHost(WorkerLoad::Make make, std::function<void()> wake, const char* thread_name)
    : make_(std::move(make)), wake_(std::move(wake)), thread_name_(thread_name), thread_([this] { serve(); }) {}

ThreadWorkerHost::~ThreadWorkerHost() { close(); }

// ---- the loop's thread

bool ThreadWorkerHost::post(WorkEvent& event, int64_t) {
  const Status status = events_.push(std::move(event));
  if (status.code() != StatusCode::kResourceExhausted) return true;  // closed: the event is of no use any more
  refused_.store(true, std::memory_order_release);
  return false;
}

void ThreadWorkerHost::collect(std::vector<WorkOutput>& out) {
  {
    std::lock_guard lock(mutex_);
    for (WorkOutput& output : outputs_) out.push_back(std::move(output));
    outputs_.clear();
  }
  space_.notify_one();
}

int64_t ThreadWorkerHost::standing_ms(int64_t now_ms) {
  if (state() != State::kReady) return 0;
  const int64_t began_ms = call_began_ms_.load(std::memory_order_relaxed);
  const std::optional<Pulse> pulse = worker_->pulse();
  if (!pulse) return began_ms == 0 ? 0 : std::max<int64_t>(monotonic_ms() - began_ms, 0);
  const bool idle = began_ms == 0 && !pulse->busy;
  if (idle || pulse->progress != last_progress_) moved_ms_ = now_ms;
  last_progress_ = pulse->progress;
  return now_ms - moved_ms_;
}

void ThreadWorkerHost::compensate_pause(int64_t now_ms, int64_t paused_ms) {
  moved_ms_ = std::min(moved_ms_ + paused_ms, now_ms);
  // Where the exchange fails, the call has ended since: the next one began after the pause.
  int64_t began_ms = call_began_ms_.load(std::memory_order_relaxed);
  if (began_ms == 0) return;
  call_began_ms_.compare_exchange_strong(began_ms, std::min(began_ms + paused_ms, monotonic_ms()),
                                         std::memory_order_relaxed);
}

void ThreadWorkerHost::describe(wire::StageStatus& status) const {
  std::lock_guard lock(mutex_);
  if (!described_) return;
  const wire::StageStatus& worker = *described_;
  status.steps = worker.steps, status.running = worker.running, status.waiting = worker.waiting;
  status.pages_total = worker.pages_total, status.pages_free = worker.pages_free,
  status.pages_cached = worker.pages_cached;
  status.page_size = worker.page_size, status.weight_version = worker.weight_version;
  status.weights_checksum = worker.weights_checksum, status.text_checksum = worker.text_checksum;
  status.frozen_checksum = worker.frozen_checksum;
  status.metrics.insert(status.metrics.end(), worker.metrics.begin(), worker.metrics.end());
}

void ThreadWorkerHost::close() {
  events_.close();
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  space_.notify_all();
  if (thread_.joinable()) thread_.join();
}

// ---- the worker's thread

void ThreadWorkerHost::push(WorkOutput&& output) {
  {
    std::unique_lock lock(mutex_);
    // A worker that blocks here is not stalled: the loop does not collect.
    const int64_t began_ms = call_began_ms_.exchange(0, std::memory_order_relaxed);
    space_.wait(lock, [this] { return closed_ || outputs_.size() < kMaxWorkOutputs; });
    if (began_ms != 0) call_began_ms_.store(monotonic_ms(), std::memory_order_relaxed);
    if (closed_) return;
    outputs_.push_back(std::move(output));
  }
  wake_();
}

bool ThreadWorkerHost::load() {
  Result<std::unique_ptr<Worker>> worker = load_.run(make_);
  if (!worker.ok()) {
    state_.store(State::kFailed, std::memory_order_release);
    push({.kind = WorkOutput::Kind::kCrash, .error = worker.status()});
    return false;
  }
  worker_ = std::move(worker).value();
  describe_now();
  state_.store(State::kReady, std::memory_order_release);
  wake_();
  return true;
}

void ThreadWorkerHost::describe_now() {
  described_ms_ = monotonic_ms();
  wire::StageStatus status;
  if (!worker_->describe(status)) return;
  std::lock_guard lock(mutex_);
  described_ = std::move(status);
}

void ThreadWorkerHost::work(WorkEvent& event, Emit& emit) {
  trace::Span span(span_name(event.kind), "worker");
  span.note("request", static_cast<int64_t>(event.id.value));
  if (event.kind == WorkEvent::Kind::kAdmin) return call_admin(*worker_, *event.command, monotonic_ms(), emit);
  const bool drop = event.kind == WorkEvent::Kind::kDrop;
  const ReqId id = event.id;
  call_worker(*worker_, event, emit);
  if (drop) push({.kind = WorkOutput::Kind::kDropped, .id = id});
}

void ThreadWorkerHost::serve() {
  trace::name_thread(thread_name_);
  if (!load()) return;
  OutputEmit emit(*this);
  int wait_ms = Worker::kNever;
  while (!events_.closed()) {
    std::optional<WorkEvent> event = events_.pop(wait_ms);
    if (events_.closed()) break;
    call_began_ms_.store(monotonic_ms(), std::memory_order_relaxed);
    if (event) work(*event, emit);
    std::vector<WorkOutput> crash;
    {
      trace::Span span("tick", "worker");
      wait_ms = call_tick(*worker_, monotonic_ms(), emit, crash);
    }
    for (WorkOutput& output : crash) push(std::move(output));
    // While it is busy now and then; before it rests always, so that the heartbeat shows what it rests with.
    if (wait_ms != 0 || monotonic_ms() - described_ms_ >= kDescribeMs) describe_now();
    call_began_ms_.store(0, std::memory_order_relaxed);
    calls_.fetch_add(1, std::memory_order_relaxed);
    if (refused_.exchange(false, std::memory_order_acq_rel)) wake_();  // there is capacity again
  }
}

}  // namespace millrace::loop
