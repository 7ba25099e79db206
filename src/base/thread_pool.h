// A fixed pool of threads for data-parallel loops inside one step of a model.
//
// Owner: whoever makes the kernels (the runner, a test). The pool is not a task queue: one loop runs at a time, the
// caller takes part in it, and parallel_for returns when every iteration is done. Idle threads spin for
// kSpinMicroseconds, because loops come in trains, and then sleep in the kernel, so an idle server uses no CPU.
//
// Threads: parallel_for may be called from any thread but by one thread at a time, and never from inside a loop body
// (CHECK). A thread that wakes late does not delay the caller: the caller waits only for threads that joined the loop.
//
// Invariants: no allocation per call; chunks are handed out in increasing order; `worker` is in [0, size()) and no two
// running bodies of one loop share it, so it indexes per-thread scratch; which worker gets which chunk is not fixed,
// so nothing that is computed may depend on it. Bodies must not throw.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "base/function_ref.h"

namespace millrace {

inline constexpr int kMaxPoolThreads = 1024;
inline constexpr int kSpinMicroseconds = 30;

class ThreadPool {
 public:
  using Body = FunctionRef<void(int64_t begin, int64_t end, int worker)>;

  // `threads` counts the caller, so 1 starts no thread and runs every loop inline. Wants 1 .. kMaxPoolThreads.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(threads_.size()) + 1; }

  // A number that changes with every loop and every chunk of one: for whoever watches, from any thread, whether a long
  // computation moves. It means nothing else.
  uint64_t motion() const {
    return (loops_.load(std::memory_order_relaxed) << 32) +
           static_cast<uint64_t>(next_.load(std::memory_order_relaxed));
  }

  // Calls body(begin, end, worker) over disjoint chunks of at most `grain` iterations that cover [0, count).
  // Every chunk begins at a multiple of `grain`. count <= grain runs inline without waking a thread.
  void parallel_for(int64_t count, int64_t grain, Body body);

 private:
  void worker_main(int worker);
  void run_chunks(int worker);
  bool try_join();
  void leave();

  // The loop in progress: written by the caller while no worker is joined, read by workers that joined.
  const Body* body_ = nullptr;
  int64_t count_ = 0;
  int64_t grain_ = 1;

  alignas(64) std::atomic<int64_t> next_{0};    // first iteration nobody has taken
  alignas(64) std::atomic<uint32_t> state_{0};  // kOpenBit | number of joined workers
  alignas(64) std::atomic<uint32_t> epoch_{0};  // counts loops; workers sleep on it
  std::atomic<bool> stopping_{false};
  std::atomic<bool> busy_{false};   // a caller is inside parallel_for
  std::atomic<uint64_t> loops_{0};  // begun so far; written by the caller alone
  std::vector<std::thread> threads_;
};

}  // namespace millrace
