// What every stage has in common: a loop on one thread, and the request to stop it.
//
// Owner: what composes the pipeline (app/). run() is the stage's whole life: it returns after a Shutdown message
// or request_stop(). Thread safety: run() on the stage's own thread; request_stop() from any thread or a signal
// handler's thread.
#pragma once

#include <atomic>
#include <cstdint>

namespace millrace {

inline constexpr int kHeartbeatMs = 250;  // between two StageStatus messages of a stage

class Stage {
 public:
  virtual ~Stage() = default;
  virtual void run() = 0;
  void request_stop() { stop_.store(true, std::memory_order_release); }

 protected:
  bool stop_requested() const { return stop_.load(std::memory_order_acquire); }

 private:
  std::atomic<bool> stop_{false};
};

}  // namespace millrace
