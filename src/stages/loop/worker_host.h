// WorkerHost: connects a stage loop to its worker; the loop never blocks on it.
//
//   loop --- post(event) -----> worker      at most kMaxWorkEvents wait; one more is refused and stays the loop's
//   loop <-- collect(output) -- worker      at most kMaxWorkOutputs wait; the worker blocks for space, the loop never
//
// Each kDrop event is answered by a kDropped output of that request: the worker has released it. An exception of a
// worker becomes a failure of the request that it was called for; one thrown by tick() becomes a kCrash, which fails
// all requests of the worker. InlineWorkerHost runs the worker inside post() and run(), on the caller's thread: for
// simulations and for workers whose calls are short (a hop to another thread costs 20 to 45 us); it makes and loads
// the worker on a thread of its own where it is asked to. ThreadWorkerHost (thread_worker_host.h) has a thread.
//
// Owner: a stage's shell, for its loop. Threads: functions of WorkerHost are called on the loop's thread. An OutputEmit
// belongs to the thread that calls the worker; Congestion and WorkerLoad are shared by both, under their locks.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/boxed.h"
#include "stages/body.h"
#include "stages/loop/limits.h"
#include "stages/worker.h"

namespace millrace::loop {

// Both are moved several times for each token, so what a token does not have is boxed.
struct WorkEvent {
  enum class Kind : uint8_t { kStart, kGenerate, kChunk, kChunksDone, kDrop, kAdmin, kLeaseLost };
  Kind kind = Kind::kStart;
  ReqId id;
  std::string from;                       // of a chunk, or of the end of a stream
  Body body;                              // of a kStart, which has a value, and of a chunk
  Boxed<wire::TokenizedRequest> request;  // of a kGenerate
  Boxed<std::string> traceparent;         // of a kStart or kGenerate that is traced
  Boxed<wire::AdminRequest> command;      // of a kAdmin, which belongs to no request
  std::shared_ptr<void> reservation;      // in the loop's DetachBudget, where the body was copied for the wait
};

struct WorkOutput {
  enum class Kind : uint8_t { kChunk, kResult, kFailure, kDropped, kCrash, kReply };
  struct Target {
    std::string stage;  // empty: the client
    std::string modality;
  };
  struct Reply {
    uint64_t command = 0;  // its id
    Result<std::string> text;
    wire::WeightsReply weights;
  };

  Kind kind = Kind::kChunk;
  bool to_all = false;  // a chunk for all stages that the request streams to; else for `target`
  ReqId id;
  Body body;             // of a chunk, and of a result, which has a value
  Boxed<Target> target;  // none: the client, of a text delta
  Boxed<Status> error;   // of a kFailure and of a kCrash
  Boxed<Reply> reply;    // of a kReply, to an admin command

  bool to_client() const { return !to_all && (!target || target->stage.empty()); }
};

// The requests whose chunks wait for their receivers. The loop sets it, the worker reads it; any thread.
class Congestion {
 public:
  void set(ReqId id, bool congested);
  bool has(ReqId id) const;

 private:
  std::atomic<std::size_t> count_{0};  // nearly always 0: then no thread locks
  mutable std::mutex mutex_;
  std::set<ReqId> ids_;
};

class WorkerHost;

// Turns the calls of a worker into outputs for the loop.
class OutputEmit : public Emit {
 public:
  explicit OutputEmit(WorkerHost& host) : host_(host) {}
  void chunk(ReqId id, Value value) override;
  void chunk_to(ReqId id, const std::string& target, Value value, const std::string& modality) override;
  bool congested(ReqId id) const override;
  void tokens(ReqId id, wire::TokenDelta delta) override;
  void text(ReqId id, wire::TextDelta delta) override;
  void result(ReqId id, Value value) override;
  void fail(ReqId id, Status status) override;
  void reply(uint64_t command, const Result<std::string>& reply, wire::WeightsReply weights) override;

 private:
  WorkerHost& host_;
};

// Making and loading a worker on a thread, which takes long; the loop reads how far it is. Thread safety: run() on one
// thread, the others on any.
class WorkerLoad {
 public:
  using Make = std::function<Result<std::unique_ptr<Worker>>()>;
  struct Progress {
    std::string action;
    double fraction = 0;
  };
  // The loaded worker. An error, also of an exception, is kept for failure().
  Result<std::unique_ptr<Worker>> run(const Make& make);
  Progress progress() const;
  Status failure() const;

 private:
  Result<std::unique_ptr<Worker>> make_and_load(const Make& make);

  mutable std::mutex mutex_;  // guards what follows
  Progress progress_;
  Status failure_;
};

class WorkerHost {
 public:
  // Events wait while it loads; one that failed does nothing any more, and puts out one kCrash.
  enum class State : uint8_t { kLoading, kReady, kFailed };

  virtual ~WorkerHost() = default;
  virtual State state() const { return State::kReady; }
  WorkerLoad::Progress loading() const { return load_.progress(); }  // in kLoading: how far it is
  Status failure() const { return load_.failure(); }                 // why it failed
  // False: the queue is full; the event is unchanged.
  virtual bool post(WorkEvent& event, int64_t now_ms) = 0;
  // The same for a kChunk of one delta.
  virtual bool post_delta(ReqId id, const std::string& from, Body& delta, int64_t now_ms);
  // What Emit::congested() returns for a request. The loop resets it before it forgets the request.
  void congest(ReqId id, bool congested) { congestion_.set(id, congested); }
  // Appends the worker's outputs since the last call.
  virtual void collect(std::vector<WorkOutput>& out) = 0;
  // Does what is due now, where the host has no thread; when it wants to be called again, or kNoWake.
  virtual int64_t run(int64_t now_ms) = 0;
  // For how long the worker has had work without moving, as far as the calls of this function show: its Pulse, or the
  // call that it is in. 0: it moves, or has nothing to do.
  virtual int64_t standing_ms(int64_t now_ms) = 0;
  // The process did not run for so long until now: that the worker did not move then is not its fault.
  virtual void compensate_pause(int64_t now_ms, int64_t paused_ms) = 0;
  // The worker's own numbers, as of its last call (Worker::describe).
  virtual void describe(wire::StageStatus& status) const = 0;
  virtual std::size_t waiting() const = 0;  // events
  virtual uint64_t calls() const = 0;       // ended so far
  // Worker::drain() and Worker::holds(), once it is loaded.
  virtual void drain() = 0;
  virtual bool holds() const = 0;
  // The worker is not called again. Waits for the call that it is in.
  virtual void close() = 0;

 protected:
  friend class OutputEmit;
  // One output more for collect(). Called inside a call of the worker.
  virtual void push(WorkOutput&& output) = 0;

  Congestion congestion_;
  WorkerLoad load_;
};

// Calls the worker for one event of a request, and turns exceptions into failures.
void call_worker(Worker& worker, WorkEvent& event, Emit& emit);
// For a kAdmin; an exception becomes the reply.
void call_admin(Worker& worker, const wire::AdminRequest& command, int64_t now_ms, Emit& emit);
// tick(), where an exception becomes a kCrash.
int call_tick(Worker& worker, int64_t now_ms, Emit& emit, std::vector<WorkOutput>& crash);

class InlineWorkerHost : public WorkerHost {
 public:
  explicit InlineWorkerHost(std::unique_ptr<Worker> worker);  // loaded
  // Makes and loads the worker on a thread of its own; `wake` is called there at the end.
  InlineWorkerHost(WorkerLoad::Make make, std::function<void()> wake);
  ~InlineWorkerHost() override { close(); }
  State state() const override { return state_.load(std::memory_order_acquire); }
  bool post(WorkEvent& event, int64_t now_ms) override;
  bool post_delta(ReqId id, const std::string& from, Body& delta, int64_t now_ms) override;
  void collect(std::vector<WorkOutput>& out) override;
  int64_t run(int64_t now_ms) override;
  int64_t standing_ms(int64_t now_ms) override;
  void compensate_pause(int64_t now_ms, int64_t paused_ms) override {
    moved_ms_ = std::min(moved_ms_ + paused_ms, now_ms);
  }
  void describe(wire::StageStatus& status) const override;
  std::size_t waiting() const override { return 0; }
  uint64_t calls() const override { return calls_; }
  void drain() override {
    if (state() == State::kReady) worker_->drain();
  }
  bool holds() const override { return state() == State::kReady && worker_->holds(); }
  void close() override;

 private:
  void push(WorkOutput&& output) override { outputs_.push_back(std::move(output)); }
  void tick(int64_t now_ms);

  std::unique_ptr<Worker> worker_;  // the loader's until it is ready
  std::atomic<State> state_{State::kReady};
  int64_t moved_ms_ = 0;
  uint64_t last_progress_ = 0;
  std::vector<WorkOutput> outputs_;
  int64_t due_ms_ = 0;  // when tick() is due: once it is loaded, then as it asks
  uint64_t calls_ = 0;
  bool closed_ = false;
  bool crashed_ = false;  // and the loop knows it
  std::thread loader_;    // last: it uses the others
};

}  // namespace millrace::loop
