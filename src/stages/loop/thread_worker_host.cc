#include "stages/loop/thread_worker_host.h"

#include <algorithm>
#include <exception>

#include "base/trace.h"
#include "stages/stage.h"

namespace millrace::loop {
namespace {

const char* span_name(WorkEvent::Kind kind) {
  static constexpr const char* kNames[] = {"start", "chunk", "chunks_done", "drop", "flush_cache"};
  return kNames[static_cast<std::size_t>(kind)];
}

}  // namespace

class ThreadWorkerHost::ThreadEmit : public NewsEmit {
 public:
  explicit ThreadEmit(ThreadWorkerHost& host) : NewsEmit(host.congestion_), host_(host) {}

 private:
  void say(WorkNews news) override { host_.say(std::move(news)); }

  ThreadWorkerHost& host_;
};

ThreadWorkerHost::ThreadWorkerHost(Make make, std::function<void()> wake, const char* thread_name)
    : make_(std::move(make)), wake_(std::move(wake)), thread_name_(thread_name), thread_([this] { serve(); }) {}

ThreadWorkerHost::~ThreadWorkerHost() { close(); }

bool ThreadWorkerHost::post(WorkEvent& event, int64_t) {
  const Status status = events_.push(std::move(event));
  if (status.code() != StatusCode::kResourceExhausted) return true;  // closed: nobody will want it
  refused_.store(true, std::memory_order_release);
  return false;
}

void ThreadWorkerHost::collect(std::vector<WorkNews>& out) {
  {
    std::lock_guard lock(mutex_);
    for (WorkNews& news : news_) out.push_back(std::move(news));
    news_.clear();
  }
  room_.notify_one();
}

int64_t ThreadWorkerHost::busy_ms() const {
  const int64_t began_ms = call_began_ms_.load(std::memory_order_relaxed);
  return began_ms == 0 ? 0 : std::max<int64_t>(monotonic_ms() - began_ms, 0);
}

void ThreadWorkerHost::close() {
  events_.close();
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  room_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void ThreadWorkerHost::say(WorkNews news) {
  {
    std::unique_lock lock(mutex_);
    // A worker that waits here has not come to a stop: the loop does not listen.
    const int64_t began_ms = call_began_ms_.exchange(0, std::memory_order_relaxed);
    room_.wait(lock, [this] { return closed_ || news_.size() < kMaxWorkNews; });
    if (began_ms != 0) call_began_ms_.store(monotonic_ms(), std::memory_order_relaxed);
    if (closed_) return;
    news_.push_back(std::move(news));
  }
  wake_();
}

Status ThreadWorkerHost::failure() const {
  std::lock_guard lock(mutex_);
  return failure_;
}

bool ThreadWorkerHost::load() {
  Status status;
  try {
    Result<std::unique_ptr<Worker>> worker = make_();
    status = worker.status();
    if (worker.ok()) worker_ = std::move(worker).value();
    if (worker.ok() && !worker_) status = internal_error("there is no worker");
  } catch (const std::exception& e) {
    status = internal_error("making the worker threw: {}", e.what());
  }
  if (status.ok()) {
    state_.store(State::kReady, std::memory_order_release);
    wake_();
    return true;
  }
  {
    std::lock_guard lock(mutex_);
    failure_ = status;
  }
  state_.store(State::kFailed, std::memory_order_release);
  say({.kind = WorkNews::Kind::kCrash, .status = status});
  return false;
}

void ThreadWorkerHost::work(WorkEvent& event, Emit& emit) {
  trace::Span span(span_name(event.kind), "worker");
  span.note("request", static_cast<int64_t>(event.id.value));
  if (event.kind == WorkEvent::Kind::kFlush) return say(call_flush(*worker_, event));
  const bool drop = event.kind == WorkEvent::Kind::kDrop;
  const ReqId id = event.id;
  call_worker(*worker_, event, emit);
  if (drop) say({.kind = WorkNews::Kind::kDropped, .id = id});
}

void ThreadWorkerHost::serve() {
  trace::name_thread(thread_name_);
  if (!load()) return;
  ThreadEmit emit(*this);
  int wait_ms = Worker::kNever;
  while (!events_.closed()) {
    std::optional<WorkEvent> event = events_.pop(wait_ms);
    if (events_.closed()) break;
    call_began_ms_.store(monotonic_ms(), std::memory_order_relaxed);
    if (event) work(*event, emit);
    std::vector<WorkNews> crash;
    {
      trace::Span span("tick", "worker");
      wait_ms = call_tick(*worker_, monotonic_ms(), emit, crash);
    }
    for (WorkNews& news : crash) say(std::move(news));
    call_began_ms_.store(0, std::memory_order_relaxed);
    calls_.fetch_add(1, std::memory_order_relaxed);
    if (refused_.exchange(false, std::memory_order_acq_rel)) wake_();  // there is room again
  }
}

}  // namespace millrace::loop
