#include "pipeline/coordinator_links.h"

#include <utility>

namespace millrace {

class CoordinatorLinks::MovableOutbox final : public Outbox {
 public:
  explicit MovableOutbox(std::shared_ptr<Outbox> outbox) : outbox_(std::move(outbox)) {}

  // Without the mutex: a send may take a while, and move() must not wait for it. The shared pointer keeps the old
  // outbox until the call returns.
  Status send(wire::Message& message) override { return current()->send(message); }
  void move(std::shared_ptr<Outbox> outbox) {
    const std::lock_guard lock(mutex_);
    std::swap(outbox_, outbox);  // the old one closes behind the lock
  }

 private:
  std::shared_ptr<Outbox> current() {
    const std::lock_guard lock(mutex_);
    return outbox_;
  }

  std::mutex mutex_;
  std::shared_ptr<Outbox> outbox_;
};

class CoordinatorLinks::MovableAborts {
 public:
  MovableAborts(std::unique_ptr<AbortSubscription> hints, std::shared_ptr<Waker> waker)
      : waker_(std::move(waker)), hints_(std::move(hints)) {}

  // Under the mutex, as a subscription belongs to one thread: the stage reads, and move() closes it on another.
  std::optional<ReqId> next() {
    const std::lock_guard lock(mutex_);
    return hints_->next();
  }
  uint64_t dropped() {
    const std::lock_guard lock(mutex_);
    return dropped_before_ + hints_->dropped();
  }
  const std::shared_ptr<Waker>& waker() const { return waker_; }
  // What was not read yet is of requests of a coordinator that leads no more.
  void move(std::unique_ptr<AbortSubscription> hints) {
    const std::lock_guard lock(mutex_);
    // The counter goes on over a move, as the stage reports it as one that only grows.
    dropped_before_ += hints_->dropped();
    std::swap(hints_, hints);
  }

 private:
  const std::shared_ptr<Waker> waker_;
  std::mutex mutex_;
  std::unique_ptr<AbortSubscription> hints_;
  uint64_t dropped_before_ = 0;
};

// What the stage owns.
// A unique_ptr for the stage and a weak_ptr here cannot share one object: this is the stage's half of a shared one.
class CoordinatorLinks::OwnedAborts final : public AbortSubscription {
 public:
  explicit OwnedAborts(std::shared_ptr<MovableAborts> aborts) : aborts_(std::move(aborts)) {}
  std::optional<ReqId> next() override { return aborts_->next(); }
  uint64_t dropped() const override { return aborts_->dropped(); }

 private:
  const std::shared_ptr<MovableAborts> aborts_;
};

Result<std::shared_ptr<Outbox>> CoordinatorLinks::connect() {
  const std::lock_guard lock(mutex_);
  ASSIGN_OR_RETURN(auto outbox, opener_.outbox(control_));
  auto movable = std::make_shared<MovableOutbox>(std::move(outbox));
  // Weak: a stage that ends drops its outbox, and the next move() forgets it.
  outboxes_.push_back(movable);
  return std::shared_ptr<Outbox>(std::move(movable));
}

Result<std::unique_ptr<AbortSubscription>> CoordinatorLinks::subscribe(std::shared_ptr<Waker> waker) {
  const std::lock_guard lock(mutex_);
  ASSIGN_OR_RETURN(auto hints, opener_.aborts(control_, waker));
  auto movable = std::make_shared<MovableAborts>(std::move(hints), std::move(waker));
  aborts_.push_back(movable);
  return std::unique_ptr<AbortSubscription>(std::make_unique<OwnedAborts>(std::move(movable)));
}

Status CoordinatorLinks::move(const std::string& control) {
  const std::lock_guard lock(mutex_);
  // First, and whatever fails below: what is opened from now on leads to the new coordinator.
  control_ = control;
  Status first;
  const auto note = [&](const Status& status) {
    if (first.ok()) first = status;
  };
  for (const std::weak_ptr<MovableOutbox>& weak : outboxes_) {
    const auto movable = weak.lock();
    if (!movable) continue;
    // Under the lock, so that no connect() in between opens one that would miss this move. Opening only resolves and
    // connects in the background.
    auto outbox = opener_.outbox(control);
    outbox.ok() ? movable->move(std::move(outbox).value()) : note(outbox.status());
  }
  for (const std::weak_ptr<MovableAborts>& weak : aborts_) {
    const auto movable = weak.lock();
    if (!movable) continue;
    auto hints = opener_.aborts(control, movable->waker());
    hints.ok() ? movable->move(std::move(hints).value()) : note(hints.status());
  }
  std::erase_if(outboxes_, [](const auto& weak) { return weak.expired(); });
  std::erase_if(aborts_, [](const auto& weak) { return weak.expired(); });
  return first;
}

}  // namespace millrace
