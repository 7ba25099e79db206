// What every stage has in common: a loop on one thread, an inbox, outboxes, a heartbeat, and the order to stop.
//
// Owned by whoever composes the pipeline (app/). run() is the stage's whole life: it returns after a Shutdown message
// or request_stop(). Thread safety: run() on the stage's own thread; request_stop() from any thread or a signal
// handler's thread.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <string>
#include <utility>

#include "base/log.h"
#include "control/mailbox.h"
#include "wire/messages.h"

namespace millrace {

inline constexpr int kHeartbeatMs = 250;      // between two StageStatus messages of a stage
inline constexpr int kStageSilentMs = 2000;   // a stage that was not heard for so long is reported as stalled
inline constexpr int kAdminGraceMs = 10'000;  // an order may take so long beyond its own time: a trace is written

inline int64_t monotonic_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

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

// Sends what it is given in order, and keeps what the receiver cannot take yet. A stage looks at full() before it makes
// more. A message that can never be sent (it is over a limit of the wire) is logged and dropped: it must not hold up
// everybody else's.
class PatientOutbox {
 public:
  static constexpr std::size_t kMaxKept = 256;  // messages

  explicit PatientOutbox(std::shared_ptr<Outbox> outbox) : outbox_(std::move(outbox)) {}

  void send(wire::Message message) {
    kept_.push_back(std::move(message));
    flush();
  }
  // For news that is repeated anyway (heartbeats): a receiver that stays away must not make it pile up.
  void send_unless_full(wire::Message message) {
    if (!full() || flush()) send(std::move(message));
  }
  // True when nothing is kept any more.
  bool flush() {
    while (!kept_.empty()) {
      const Status status = outbox_->send(kept_.front());
      const bool later = status.code() == StatusCode::kResourceExhausted || status.code() == StatusCode::kUnavailable;
      if (later) return false;
      if (!status.ok()) LOG_ERROR("dropped a message that cannot be sent: {}", status.to_string());
      kept_.pop_front();
    }
    return true;
  }
  bool full() const { return kept_.size() >= kMaxKept; }

 private:
  std::shared_ptr<Outbox> outbox_;
  std::deque<wire::Message> kept_;
};

}  // namespace millrace
