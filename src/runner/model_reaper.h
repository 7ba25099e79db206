// ModelReaper: frees models that are no longer in use, on a thread of its own. Giving gigabytes back to the kernel
// takes long enough that neither a step nor the thread that switches weights should wait for it.
//
// Owner: the model runner. Threads: full() and release() from any thread. The destructor frees what is left and waits
// for it. Invariant: at most 2 * kMaxRetiredModels references wait (the runner asks full() before it stages a model;
// one that is staged and one that serves may follow those).
#pragma once

#include <atomic>
#include <memory>
#include <thread>

#include "base/bounded_queue.h"
#include "models/model.h"

namespace millrace {

inline constexpr int kMaxRetiredModels = 4;  // whose memory may wait to be freed; each may be gigabytes

class ModelReaper {
 public:
  ModelReaper();
  ~ModelReaper();
  ModelReaper(const ModelReaper&) = delete;
  ModelReaper& operator=(const ModelReaper&) = delete;

  // So much waits to be freed that no more models should be retired now.
  bool full() const { return pending_ >= kMaxRetiredModels; }
  // Drops the reference soon; returns at once. CHECK: no more of them wait than the invariant allows.
  void release(std::shared_ptr<const Model> model);

 private:
  std::atomic<int> pending_{0};  // waiting, or being freed
  BoundedQueue<std::shared_ptr<const Model>> queue_{2 * kMaxRetiredModels};
  std::thread thread_;
};

}  // namespace millrace
