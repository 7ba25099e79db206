#include "pipeline/coordinator_links.h"

#include <utility>

namespace millrace {

class CoordinatorLinks::MovableOutbox final : public Outbox {
 public:
  explicit MovableOutbox(std::shared_ptr<Outbox> outbox) : outbox_(std::move(outbox)) {}

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
  outboxes_.push_back(movable);
  return std::shared_ptr<Outbox>(std::move(movable));
}

Status CoordinatorLinks::move(const std::string& control) {
  const std::lock_guard lock(mutex_);
  control_ = control;
  Status first;
  for (const std::weak_ptr<MovableOutbox>& weak : outboxes_) {
    const auto movable = weak.lock();
    if (!movable) continue;
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
