// ThreadWorkerHost: a worker on a thread of its own, with a bounded queue each way (loop/worker_host.h).
//
// The worker is made on that thread too, since making one may take long (it reads a model).
//
// Owner: a stage's shell. `wake` is called on the worker's thread whenever there is news, and must not block; it may be
// called until close() has returned. The destructor closes.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "base/bounded_queue.h"
#include "stages/loop/worker_host.h"

namespace millrace::loop {

class ThreadWorkerHost : public WorkerHost {
 public:
  using Make = std::function<Result<std::unique_ptr<Worker>>()>;
  // `thread_name`, for traces, lives as long as the process.
  ThreadWorkerHost(Make make, std::function<void()> wake, const char* thread_name = "worker");
  ~ThreadWorkerHost() override;
  bool post(WorkEvent& event, int64_t now_ms) override;
  void collect(std::vector<WorkNews>& out) override;
  int64_t run(int64_t) override { return kNoWake; }
  int64_t busy_ms() const override;
  std::size_t waiting() const override { return events_.size(); }
  uint64_t calls() const override { return calls_.load(std::memory_order_relaxed); }
  void close() override;
  State state() const override { return state_.load(std::memory_order_acquire); }
  Status failure() const override;

 private:
  class ThreadEmit;
  bool load();
  void serve();
  void work(WorkEvent& event, Emit& emit);
  void say(WorkNews news);

  Make make_;
  std::unique_ptr<Worker> worker_;  // the thread's own
  std::function<void()> wake_;
  const char* const thread_name_;
  BoundedQueue<WorkEvent> events_{kMaxWorkEvents};
  mutable std::mutex mutex_;  // over what follows
  std::condition_variable room_;
  std::vector<WorkNews> news_;
  Status failure_;
  bool closed_ = false;
  std::atomic<State> state_{State::kLoading};
  std::atomic<int64_t> call_began_ms_{0};  // 0: in no call
  std::atomic<uint64_t> calls_{0};
  std::atomic<bool> refused_{false};  // an event, since the last call
  std::thread thread_;                // last: it uses all the others
};

}  // namespace millrace::loop
