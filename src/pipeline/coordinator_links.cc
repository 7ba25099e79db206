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

Result<std::shared_ptr<Outbox>> CoordinatorLinks::connect() {
  const std::lock_guard lock(mutex_);
  ASSIGN_OR_RETURN(auto outbox, open_(control_));
  auto movable = std::make_shared<MovableOutbox>(std::move(outbox));
  // Weak: a stage that ends drops its outbox, and the next move() forgets it.
  outboxes_.push_back(movable);
  return std::shared_ptr<Outbox>(std::move(movable));
}

Status CoordinatorLinks::move(const std::string& control) {
  const std::lock_guard lock(mutex_);
  // First, and whatever fails below: what is opened from now on leads to the new coordinator.
  control_ = control;
  Status first;
  for (const std::weak_ptr<MovableOutbox>& weak : outboxes_) {
    const auto movable = weak.lock();
    if (!movable) continue;
    // Under the lock, so that no connect() in between opens one that would miss this move. Opening only resolves and
    // connects in the background.
    auto outbox = open_(control);
    if (outbox.ok()) {
      movable->move(std::move(outbox).value());
    } else if (first.ok()) {
      first = outbox.status();
    }
  }
  std::erase_if(outboxes_, [](const auto& weak) { return weak.expired(); });
  return first;
}

}  // namespace millrace
