#include "stages/loop/worker_host.h"

#include <exception>

namespace millrace::loop {
namespace {

// Collects into a vector.
class VectorEmit : public NewsEmit {
 public:
  VectorEmit(std::vector<WorkNews>& news, const Congestion& congestion) : NewsEmit(congestion), news_(news) {}

 private:
  void say(WorkNews news) override { news_.push_back(std::move(news)); }

  std::vector<WorkNews>& news_;
};

void deliver(Worker& worker, WorkEvent& event, Emit& emit) {
  switch (event.kind) {
    case WorkEvent::Kind::kStart:
      return worker.start(event.id, std::move(event.value), emit);
    case WorkEvent::Kind::kChunk:
      return worker.chunk(event.id, event.from, std::move(event.value), emit);
    case WorkEvent::Kind::kChunksDone:
      return worker.chunks_done(event.id, event.from, emit);
    case WorkEvent::Kind::kDrop:
      return worker.drop(event.id);
    case WorkEvent::Kind::kFlush:
      return;  // call_flush() answers
  }
}

}  // namespace

void NewsEmit::chunk(ReqId id, Value value) {
  say({.kind = WorkNews::Kind::kChunk, .id = id, .to_all = true, .value = std::move(value)});
}

void NewsEmit::chunk_to(ReqId id, const std::string& target, Value value, const std::string& modality) {
  say({.kind = WorkNews::Kind::kChunk, .id = id, .target = target, .modality = modality, .value = std::move(value)});
}

void NewsEmit::result(ReqId id, Value value) {
  say({.kind = WorkNews::Kind::kResult, .id = id, .value = std::move(value)});
}

void NewsEmit::fail(ReqId id, Status status) {
  if (status.ok()) status = internal_error("the worker failed the request without saying why");
  say({.kind = WorkNews::Kind::kFailure, .id = id, .status = std::move(status)});
}

void Congestion::set(ReqId id, bool congested) {
  std::lock_guard lock(mutex_);
  if (congested) {
    ids_.insert(id);
  } else {
    ids_.erase(id);
  }
  count_.store(ids_.size(), std::memory_order_release);
}

bool Congestion::has(ReqId id) const {
  if (count_.load(std::memory_order_acquire) == 0) return false;
  std::lock_guard lock(mutex_);
  return ids_.contains(id);
}

void call_worker(Worker& worker, WorkEvent& event, Emit& emit) {
  try {
    deliver(worker, event, emit);
  } catch (const std::exception& e) {
    emit.fail(event.id, internal_error("the worker threw: {}", e.what()));
  } catch (...) {
    emit.fail(event.id, internal_error("the worker threw something that is no exception"));
  }
}

WorkNews call_flush(Worker& worker, const WorkEvent& event) {
  WorkNews news{.kind = WorkNews::Kind::kFlushed, .order = event.order};
  try {
    Result<std::string> done = worker.flush_cache();
    news.status = done.status();
    if (done.ok()) news.text = std::move(done).value();
  } catch (const std::exception& e) {
    news.status = internal_error("the worker threw: {}", e.what());
  } catch (...) {
    news.status = internal_error("the worker threw something that is no exception");
  }
  return news;
}

int call_tick(Worker& worker, int64_t now_ms, Emit& emit, std::vector<WorkNews>& crash) {
  try {
    return worker.tick(now_ms, emit);
  } catch (const std::exception& e) {
    crash.push_back({.kind = WorkNews::Kind::kCrash, .status = internal_error("the worker threw: {}", e.what())});
  } catch (...) {
    crash.push_back({.kind = WorkNews::Kind::kCrash, .status = internal_error("the worker threw no exception")});
  }
  return Worker::kNever;
}

InlineWorkerHost::InlineWorkerHost(std::unique_ptr<Worker> worker) : worker_(std::move(worker)) {}

bool InlineWorkerHost::post(WorkEvent& event, int64_t now_ms) {
  if (closed_) return true;
  const WorkEvent::Kind kind = event.kind;
  const ReqId id = event.id;
  VectorEmit emit(news_, congestion_);
  if (kind == WorkEvent::Kind::kFlush) {
    news_.push_back(call_flush(*worker_, event));
  } else {
    call_worker(*worker_, event, emit);
  }
  ++calls_;
  if (kind == WorkEvent::Kind::kDrop) news_.push_back({.kind = WorkNews::Kind::kDropped, .id = id});
  tick(now_ms);
  return true;
}

void InlineWorkerHost::tick(int64_t now_ms) {
  VectorEmit emit(news_, congestion_);
  const int wait_ms = call_tick(*worker_, now_ms, emit, news_);
  ++calls_;
  due_ms_ = wait_ms == Worker::kNever ? kNoWake : now_ms + wait_ms;
}

void InlineWorkerHost::collect(std::vector<WorkNews>& out) {
  for (WorkNews& news : news_) out.push_back(std::move(news));
  news_.clear();
}

int64_t InlineWorkerHost::run(int64_t now_ms) {
  if (!closed_ && now_ms >= due_ms_) tick(now_ms);
  return due_ms_;
}

}  // namespace millrace::loop
