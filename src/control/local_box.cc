#include "control/local_box.h"

namespace millrace {

Status LocalBox::push(wire::Message& message) {
  {
    std::lock_guard lock(mutex_);
    if (closed_) return Status(StatusCode::kUnavailable, "the receiving stage is gone");
    if (messages_.size() >= capacity_) {
      return error(StatusCode::kResourceExhausted, "the queue is full: {} of {} places taken", messages_.size(),
                   capacity_);
    }
    messages_.push_back(std::move(message));
  }
  arrived_.notify_one();
  return ok_status();
}

std::optional<wire::Message> LocalBox::pop(int timeout_ms) {
  std::unique_lock lock(mutex_);
  const auto ready = [this] { return closed_ || woken_ || !messages_.empty(); };
  if (timeout_ms < 0) {
    arrived_.wait(lock, ready);
  } else if (timeout_ms > 0) {
    arrived_.wait_for(lock, std::chrono::milliseconds(timeout_ms), ready);
  }
  if (messages_.empty()) {
    woken_ = false;
    return std::nullopt;
  }
  wire::Message message = std::move(messages_.front());
  messages_.pop_front();
  return message;
}

void LocalBox::wake() {
  {
    std::lock_guard lock(mutex_);
    woken_ = true;
  }
  arrived_.notify_one();
}

void LocalBox::close() {
  std::deque<wire::Message> dropped;  // freed without the lock
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    dropped.swap(messages_);
  }
  arrived_.notify_all();
}

bool LocalBox::closed() const {
  std::lock_guard lock(mutex_);
  return closed_;
}

namespace {

class NoWaker final : public Waker {
 public:
  void wake() override {}
};

class LocalInbox final : public Inbox {
 public:
  LocalInbox(std::shared_ptr<LocalBox> box, std::string endpoint)
      : box_(std::move(box)), endpoint_(std::move(endpoint)) {}
  ~LocalInbox() override { box_->close(); }
  std::optional<wire::Message> receive(int timeout_ms) override { return box_->pop(timeout_ms); }
  std::shared_ptr<Waker> waker() override { return box_; }
  std::string endpoint() const override { return endpoint_; }

 private:
  std::shared_ptr<LocalBox> box_;
  std::string endpoint_;
};

class LocalOutbox final : public Outbox {
 public:
  explicit LocalOutbox(std::shared_ptr<LocalBox> box) : box_(std::move(box)) {}
  Status send(wire::Message& message) override { return box_->push(message); }

 private:
  std::shared_ptr<LocalBox> box_;
};

}  // namespace

std::shared_ptr<Waker> Inbox::waker() { return std::make_shared<NoWaker>(); }

std::unique_ptr<Inbox> make_local_inbox(std::shared_ptr<LocalBox> box, std::string endpoint) {
  return std::make_unique<LocalInbox>(std::move(box), std::move(endpoint));
}

std::shared_ptr<Outbox> make_local_outbox(std::shared_ptr<LocalBox> box) {
  return std::make_shared<LocalOutbox>(std::move(box));
}

LocalMailbox make_local_mailbox() {
  auto box = std::make_shared<LocalBox>(kMailboxCapacity);
  return {make_local_inbox(box, ""), make_local_outbox(box)};
}

}  // namespace millrace
