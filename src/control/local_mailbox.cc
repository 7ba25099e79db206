#include "control/mailbox.h"

namespace millrace {
namespace {

using Queue = BoundedQueue<wire::Message>;

class LocalInbox : public Inbox {
 public:
  explicit LocalInbox(std::shared_ptr<Queue> queue) : queue_(std::move(queue)) {}
  ~LocalInbox() override { queue_->close(); }
  std::optional<wire::Message> receive(int timeout_ms) override { return queue_->pop(timeout_ms); }

 private:
  std::shared_ptr<Queue> queue_;
};

class LocalOutbox : public Outbox {
 public:
  explicit LocalOutbox(std::shared_ptr<Queue> queue) : queue_(std::move(queue)) {}
  Status send(wire::Message& message) override { return queue_->push(std::move(message)); }

 private:
  std::shared_ptr<Queue> queue_;
};

}  // namespace

LocalMailbox make_local_mailbox() {
  auto queue = std::make_shared<Queue>(kMailboxCapacity);
  return {std::make_unique<LocalInbox>(queue), std::make_shared<LocalOutbox>(queue)};
}

}  // namespace millrace
