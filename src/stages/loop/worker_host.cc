#include "stages/loop/worker_host.h"

#include <exception>

namespace millrace::loop {
namespace {

// What a worker throws, as a status. No exception crosses into the loop: it would end the stage, and all requests with
// it.
template <typename Call>
Status caught(const Call& call) {
  try {
    call();
    return ok_status();
  } catch (const std::exception& e) {
    return internal_error("the worker threw: {}", e.what());
  } catch (...) {
    return internal_error("the worker threw something that is no exception");
  }
}

void call_for_chunk(Worker& worker, ReqId id, const std::string& from, Body& body, Emit& emit) {
  if (auto* tokens = std::get_if<wire::TokenDelta>(&body)) return worker.tokens(id, from, std::move(*tokens), emit);
  if (auto* value = std::get_if<Value>(&body)) return worker.chunk(id, from, std::move(*value), emit);
  // Text deltas are for the client; the spec's checks keep them from stages, but a peer is not trusted to.
  emit.fail(id, error(StatusCode::kUnsupported, "a stage takes no text deltas; '{}' sent one", from));
}

void call_for_event(Worker& worker, WorkEvent& event, Emit& emit) {
  if (event.traceparent) worker.trace(std::move(*event.traceparent));
  switch (event.kind) {
    case WorkEvent::Kind::kStart:
      return worker.start(event.id, std::get<Value>(std::move(event.body)), emit);
    case WorkEvent::Kind::kGenerate:
      return worker.generate(event.id, std::move(*event.request), emit);
    case WorkEvent::Kind::kChunk:
      return call_for_chunk(worker, event.id, event.from, event.body, emit);
    case WorkEvent::Kind::kChunksDone:
      return worker.chunks_done(event.id, event.from, emit);
    case WorkEvent::Kind::kDrop:
      return worker.drop(event.id);
    case WorkEvent::Kind::kLeaseLost:
      return worker.on_lease_lost();
    case WorkEvent::Kind::kAdmin:
      return;  // call_admin() does it
  }
}

}  // namespace

void OutputEmit::chunk(ReqId id, Value value) {
  host_.push({.kind = WorkOutput::Kind::kChunk, .to_all = true, .id = id, .body = std::move(value)});
}

void OutputEmit::chunk_to(ReqId id, const std::string& target, Value value, const std::string& modality) {
  host_.push({.kind = WorkOutput::Kind::kChunk,
              .id = id,
              .body = std::move(value),
              .target = WorkOutput::Target{target, modality}});
}

void OutputEmit::tokens(ReqId id, wire::TokenDelta delta) {
  host_.push({.kind = WorkOutput::Kind::kChunk, .to_all = true, .id = id, .body = std::move(delta)});
}

void OutputEmit::text(ReqId id, wire::TextDelta delta) {
  host_.push({.kind = WorkOutput::Kind::kChunk, .id = id, .body = std::move(delta)});
}

void OutputEmit::result(ReqId id, Value value) {
  host_.push({.kind = WorkOutput::Kind::kResult, .id = id, .body = std::move(value)});
}

void OutputEmit::fail(ReqId id, Status status) {
  // Else the request would end as if it had a result.
  if (status.ok()) status = internal_error("the worker failed the request without a reason");
  host_.push({.kind = WorkOutput::Kind::kFailure, .id = id, .error = std::move(status)});
}

void OutputEmit::reply(uint64_t command, const Result<std::string>& reply, wire::WeightsReply weights) {
  host_.push({.kind = WorkOutput::Kind::kReply, .reply = WorkOutput::Reply{command, reply, weights}});
}

bool OutputEmit::congested(ReqId id) const { return host_.congestion_.has(id); }

void Congestion::set(ReqId id, bool congested) {
  std::lock_guard lock(mutex_);
  if (congested) {
    ids_.insert(id);
  } else {
    ids_.erase(id);
  }
  // Under the lock, so that concurrent calls store sizes in the sequence of their changes.
  count_.store(ids_.size(), std::memory_order_release);
}

bool Congestion::has(ReqId id) const {
  // A value that is a moment old is as good: the worker asks again with its next chunk.
  if (count_.load(std::memory_order_acquire) == 0) return false;
  std::lock_guard lock(mutex_);
  return ids_.contains(id);
}

void call_worker(Worker& worker, WorkEvent& event, Emit& emit) {
  // Also after the worker has put out the request's end itself: the loop ignores what follows an end.
  if (Status status = caught([&] { call_for_event(worker, event, emit); }); !status.ok()) emit.fail(event.id, status);
}

void call_admin(Worker& worker, const wire::AdminRequest& command, int64_t now_ms, Emit& emit) {
  const Status status = caught([&] { worker.admin(command, now_ms, emit); });
  if (!status.ok()) emit.reply(command.id, status);
}

int call_tick(Worker& worker, int64_t now_ms, Emit& emit, std::vector<WorkOutput>& crash) {
  int wait_ms = Worker::kNever;
  Status status = caught([&] { wait_ms = worker.tick(now_ms, emit); });
  // tick() works for all requests, so it is not known which one it failed for.
  if (!status.ok()) crash.push_back({.kind = WorkOutput::Kind::kCrash, .error = std::move(status)});
  return wait_ms;
}

bool WorkerHost::post_delta(ReqId id, const std::string& from, Body& delta, int64_t now_ms) {
  WorkEvent event{.kind = WorkEvent::Kind::kChunk, .id = id, .from = from, .body = std::move(delta)};
  if (post(event, now_ms)) return true;
  // post() leaves an event that it refuses untouched, so the delta is what it was.
  delta = std::move(event.body);
  return false;
}

Result<std::unique_ptr<Worker>> WorkerLoad::make_and_load(const Make& make) {
  ASSIGN_OR_RETURN(std::unique_ptr<Worker> worker, make());
  if (!worker) return internal_error("there is no worker");
  RETURN_IF_ERROR(worker->load([this](const std::string& action, double fraction) {
    std::lock_guard lock(mutex_);
    progress_ = {action, fraction};
  }));
  return worker;
}

Result<std::unique_ptr<Worker>> WorkerLoad::run(const Make& make) {
  Status status;
  try {
    Result<std::unique_ptr<Worker>> worker = make_and_load(make);
    if (worker.ok()) return worker;
    status = worker.status();
  } catch (const std::exception& e) {
    status = internal_error("loading the worker threw: {}", e.what());
  } catch (...) {
    status = internal_error("loading the worker threw something that is no exception");
  }
  std::lock_guard lock(mutex_);
  failure_ = status;
  return status;
}

WorkerLoad::Progress WorkerLoad::progress() const {
  std::lock_guard lock(mutex_);
  return progress_;
}

Status WorkerLoad::failure() const {
  std::lock_guard lock(mutex_);
  return failure_;
}

InlineWorkerHost::InlineWorkerHost(std::unique_ptr<Worker> worker) : worker_(std::move(worker)) {}

InlineWorkerHost::InlineWorkerHost(WorkerLoad::Make make, std::function<void()> wake) : state_(State::kLoading) {
  loader_ = std::thread([this, make = std::move(make), wake = std::move(wake)] {
    Result<std::unique_ptr<Worker>> worker = load_.run(make);
    if (worker.ok()) worker_ = std::move(worker).value();
    // Publishes worker_: the loop reads it only after it has seen kReady.
    state_.store(worker_ ? State::kReady : State::kFailed, std::memory_order_release);
    // After the store, so that the loop which wakes sees the new state.
    wake();
  });
}

void InlineWorkerHost::close() {
  closed_ = true;
  // Waits for the load, which cannot be interrupted; a process that must end has its grace for that (src/app).
  if (loader_.joinable()) loader_.join();
}

void InlineWorkerHost::describe(wire::StageStatus& status) const {
  if (state() == State::kReady) worker_->describe(status);
}

// A call that does not return is seen by the coordinator, which misses the loop's heartbeats.
int64_t InlineWorkerHost::standing_ms(int64_t now_ms) {
  const std::optional<Pulse> pulse = state() == State::kReady ? worker_->pulse() : std::nullopt;
  if (!pulse) return 0;
  if (!pulse->busy || pulse->progress != last_progress_) moved_ms_ = now_ms;
  last_progress_ = pulse->progress;
  return now_ms - moved_ms_;
}

bool InlineWorkerHost::post(WorkEvent& event, int64_t now_ms) {
  if (closed_) return true;
  // While it loads the event is refused: it stays the loop's, in the limits that the loop has for each request.
  if (state() != State::kReady) return state() == State::kFailed;  // of no use any more
  // Copied first: the call moves the event away.
  const WorkEvent::Kind kind = event.kind;
  const ReqId id = event.id;
  OutputEmit emit(*this);
  if (kind == WorkEvent::Kind::kAdmin) {
    call_admin(*worker_, *event.command, now_ms, emit);
  } else {
    call_worker(*worker_, event, emit);
  }
  ++calls_;
  // Behind everything that the worker put out in drop(), so that it is the last output of the request.
  if (kind == WorkEvent::Kind::kDrop) outputs_.push_back({.kind = WorkOutput::Kind::kDropped, .id = id});
  tick(now_ms);
  return true;
}

bool InlineWorkerHost::post_delta(ReqId id, const std::string& from, Body& delta, int64_t now_ms) {
  if (closed_) return true;
  if (state() != State::kReady) return state() == State::kFailed;
  OutputEmit emit(*this);
  // As post(), without an event: deltas come for each token, and moving an event costs more than the call.
  const Status status = caught([&] { call_for_chunk(*worker_, id, from, delta, emit); });
  if (!status.ok()) emit.fail(id, status);
  ++calls_;
  tick(now_ms);
  return true;
}

void InlineWorkerHost::tick(int64_t now_ms) {
  OutputEmit emit(*this);
  const int wait_ms = call_tick(*worker_, now_ms, emit, outputs_);
  ++calls_;
  due_ms_ = wait_ms == Worker::kNever ? kNoWake : now_ms + wait_ms;
}

void InlineWorkerHost::collect(std::vector<WorkOutput>& out) {
  // Here and not by the loader: outputs_ are the loop's.
  if (state() == State::kFailed && !std::exchange(crashed_, true)) {
    outputs_.push_back({.kind = WorkOutput::Kind::kCrash, .error = failure()});
  }
  // The usual case; the two vectors keep their capacity and take turns.
  if (out.empty()) return out.swap(outputs_);
  for (WorkOutput& output : outputs_) out.push_back(std::move(output));
  outputs_.clear();
}

int64_t InlineWorkerHost::run(int64_t now_ms) {
  if (closed_ || state() != State::kReady) return kNoWake;
  if (now_ms >= due_ms_) tick(now_ms);
  return due_ms_;
}

}  // namespace millrace::loop
