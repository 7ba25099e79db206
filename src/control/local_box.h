// LocalBox: the queue behind a mailbox inside one process. Messages move; nothing is encoded.
//
// Owner: shared by the inbox and its outboxes. Thread safety: push() and wake() from any thread, pop() and close() from
// the reader's.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>

#include "control/mailbox.h"

namespace millrace {

class LocalBox final : public Waker {
 public:
  explicit LocalBox(std::size_t capacity) : capacity_(capacity) { CHECK(capacity >= 1); }

  // kResourceExhausted when full, kUnavailable after close(). Moved from only when the result is OK.
  Status push(wire::Message& message);
  // The oldest; waits up to timeout_ms (0: not at all, negative: for ever), or until wake() or close().
  std::optional<wire::Message> pop(int timeout_ms);
  void wake() override;
  void close();  // what is queued is dropped
  bool closed() const;

 private:
  const std::size_t capacity_;
  mutable std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<wire::Message> messages_;
  bool woken_ = false;
  bool closed_ = false;
};

// The two ends of a box. The inbox closes it when it goes.
std::unique_ptr<Inbox> make_local_inbox(std::shared_ptr<LocalBox> box, std::string endpoint);
std::shared_ptr<Outbox> make_local_outbox(std::shared_ptr<LocalBox> box);

}  // namespace millrace
