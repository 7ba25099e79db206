// WorkerHost: how a stage loop reaches its worker, without waiting for it.
//
//   loop --- post(event) ---> worker        at most kMaxWorkEvents wait; one more is refused and stays the loop's
//   loop <-- collect(news) -- worker        at most kMaxWorkNews wait; the worker waits for room, the loop never does
//
// After each kDrop event comes a kDropped news of that request: the worker has let go of it. An exception of a worker
// becomes a failure of the request that it was called for; one out of tick() is news of a crash, which fails all that
// the worker has. InlineWorkerHost does the work inside post() and run(), on the caller's thread: for simulations and
// for workers that never take long. ThreadWorkerHost (thread_worker_host.h) has a thread.
//
// Thread safety: all functions from the loop's thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "stages/loop/limits.h"
#include "stages/worker.h"

namespace millrace::loop {

struct WorkEvent {
  enum class Kind : uint8_t { kStart, kChunk, kChunksDone, kDrop, kFlush };
  Kind kind = Kind::kStart;
  ReqId id;
  std::string from;  // of a chunk, or of the end of a stream
  Value value;
  uint64_t order = 0;           // of a kFlush, which is of no request
  std::shared_ptr<void> place;  // in the loop's DetachBudget, where `value` was copied for the wait
};

struct WorkNews {
  enum class Kind : uint8_t { kChunk, kResult, kFailure, kDropped, kCrash, kFlushed };
  Kind kind = Kind::kChunk;
  ReqId id;
  bool to_all = false;  // a chunk for everybody to whom the request streams; else for `target`
  std::string target;   // empty: the client
  std::string modality;
  Value value;
  Status status;
  uint64_t order = 0;  // of a kFlushed: its one answer, the status or else the text
  std::string text;
};

// The requests whose chunks wait for their receivers. The loop says, the worker asks; any thread.
class Congestion {
 public:
  void set(ReqId id, bool congested);
  bool has(ReqId id) const;

 private:
  std::atomic<std::size_t> count_{0};  // nearly always 0: then nobody locks
  mutable std::mutex mutex_;
  std::set<ReqId> ids_;
};

// What a worker says, as news for the loop. A host decides where they go.
class NewsEmit : public Emit {
 public:
  explicit NewsEmit(const Congestion& congestion) : congestion_(congestion) {}
  void chunk(ReqId id, Value value) override;
  void chunk_to(ReqId id, const std::string& target, Value value, const std::string& modality) override;
  bool congested(ReqId id) const override { return congestion_.has(id); }
  void result(ReqId id, Value value) override;
  void fail(ReqId id, Status status) override;

 protected:
  virtual void say(WorkNews news) = 0;

 private:
  const Congestion& congestion_;
};

class WorkerHost {
 public:
  // Events wait while it loads; one that failed does nothing any more, and has said kCrash.
  enum class State : uint8_t { kLoading, kReady, kFailed };

  virtual ~WorkerHost() = default;
  virtual State state() const { return State::kReady; }
  virtual Status failure() const { return ok_status(); }  // why it failed
  // False: there is no room; the event is untouched.
  virtual bool post(WorkEvent& event, int64_t now_ms) = 0;
  // What Emit::congested says of a request. The loop takes it back before the request is forgotten.
  void congest(ReqId id, bool congested) { congestion_.set(id, congested); }
  // Appends what the worker has said since.
  virtual void collect(std::vector<WorkNews>& out) = 0;
  // Does what is due now, where there is no thread that does; when it wants to be asked again, or kNoWake.
  virtual int64_t run(int64_t now_ms) = 0;
  // How long the call lasts in which the worker is now; 0: in none.
  virtual int64_t busy_ms() const = 0;
  virtual std::size_t waiting() const = 0;  // events
  virtual uint64_t calls() const = 0;       // ended so far
  // The worker is not called again. Waits for the call in which it is.
  virtual void close() = 0;

 protected:
  Congestion congestion_;
};

// Calls the worker for one event of a request, and turns exceptions into failures.
void call_worker(Worker& worker, WorkEvent& event, Emit& emit);
// For a kFlush; never without an answer.
WorkNews call_flush(Worker& worker, const WorkEvent& event);
// tick(), where an exception is news of a crash.
int call_tick(Worker& worker, int64_t now_ms, Emit& emit, std::vector<WorkNews>& crash);

class InlineWorkerHost : public WorkerHost {
 public:
  explicit InlineWorkerHost(std::unique_ptr<Worker> worker);
  bool post(WorkEvent& event, int64_t now_ms) override;
  void collect(std::vector<WorkNews>& out) override;
  int64_t run(int64_t now_ms) override;
  int64_t busy_ms() const override { return 0; }
  std::size_t waiting() const override { return 0; }
  uint64_t calls() const override { return calls_; }
  void close() override { closed_ = true; }

 private:
  void tick(int64_t now_ms);

  std::unique_ptr<Worker> worker_;
  std::vector<WorkNews> news_;
  int64_t due_ms_ = kNoWake;
  uint64_t calls_ = 0;
  bool closed_ = false;
};

}  // namespace millrace::loop
