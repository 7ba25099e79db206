// ThreadWorkerHost: a worker on a thread of its own, with a bounded queue each way (loop/worker_host.h).
//
// The worker is made and loaded on that thread too, since loading may take long (it reads a model).
//
// Owner: a stage's shell. `wake` is called on the worker's thread whenever there are outputs, and must not block; it
// may be called until close() has returned. The destructor closes.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "base/bounded_queue.h"
#include "stages/loop/worker_host.h"

namespace millrace::loop {

inline constexpr int64_t kDescribeMs = 100;  // between two calls of Worker::describe() while the worker is busy

class ThreadWorkerHost : public WorkerHost {
 public:
  // `thread_name`, for traces, lives as long as the process.
  ThreadWorkerHost(WorkerLoad::Make make, std::function<void()> wake, const char* thread_name = "worker");
  ~ThreadWorkerHost() override;
  bool post(WorkEvent& event, int64_t now_ms) override;
  void collect(std::vector<WorkOutput>& out) override;
  int64_t run(int64_t) override { return kNoWake; }
  int64_t standing_ms(int64_t now_ms) override;
  void compensate_pause(int64_t now_ms, int64_t paused_ms) override;
  void describe(wire::StageStatus& status) const override;
  std::size_t waiting() const override { return events_.size(); }
  uint64_t calls() const override { return calls_.load(std::memory_order_relaxed); }
  void drain() override {
    if (state() == State::kReady) worker_->drain();
  }
  bool holds() const override { return state() == State::kReady && worker_->holds(); }
  void close() override;
  State state() const override { return state_.load(std::memory_order_acquire); }

 private:
  bool load();
  void serve();
  void work(WorkEvent& event, Emit& emit);
  void describe_now();
  void push(WorkOutput&& output) override;

  WorkerLoad::Make make_;
  std::unique_ptr<Worker> worker_;  // the thread's own; pulse(), drain() and holds() are for any
  std::function<void()> wake_;
  const char* const thread_name_;
  BoundedQueue<WorkEvent> events_{kMaxWorkEvents};
  mutable std::mutex mutex_;  // guards what follows, down to closed_
  std::condition_variable space_;
  std::vector<WorkOutput> outputs_;
  std::optional<wire::StageStatus> described_;  // the worker's own numbers, where it has some
  bool closed_ = false;
  std::atomic<State> state_{State::kLoading};
  std::atomic<int64_t> call_began_ms_{0};  // 0: in no call, or blocked until the loop collects
  std::atomic<uint64_t> calls_{0};
  std::atomic<bool> refused_{false};  // an event, since the last call
  int64_t described_ms_ = 0;          // the worker's thread
  int64_t moved_ms_ = 0;              // the loop's thread, as the next one
  uint64_t last_progress_ = 0;
  std::thread thread_;  // last: it uses all the others
};

}  // namespace millrace::loop
