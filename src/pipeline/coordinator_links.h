// CoordinatorLinks: a process's ways to the coordinator of its pipeline, over hosts: outboxes to it and subscriptions
// to its abort hints. When another server leads, move() takes them all there; who holds one notices nothing but that
// its messages are answered by another session, as after a coordinator's restart.
//
// Owner: PipelineNetwork; what it made may outlive it. Thread safety: all functions from any thread.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/status.h"
#include "control/abort_bus.h"
#include "control/mailbox.h"

namespace millrace {

class CoordinatorLinks {
 public:
  struct Opener {
    std::function<Result<std::shared_ptr<Outbox>>(const std::string& control)> outbox;
    std::function<Result<std::unique_ptr<AbortSubscription>>(const std::string& control, std::shared_ptr<Waker>)>
        aborts;
  };
  CoordinatorLinks(std::string control, Opener opener) : opener_(std::move(opener)), control_(std::move(control)) {}

  Result<std::shared_ptr<Outbox>> connect();
  Result<std::unique_ptr<AbortSubscription>> subscribe(std::shared_ptr<Waker> waker);
  // Where one cannot be opened, that one stays where it was, and the first reason is returned.
  Status move(const std::string& control);

 private:
  class MovableOutbox;
  class MovableAborts;
  class OwnedAborts;

  const Opener opener_;
  std::mutex mutex_;
  std::string control_;
  std::vector<std::weak_ptr<MovableOutbox>> outboxes_;
  std::vector<std::weak_ptr<MovableAborts>> aborts_;
};

}  // namespace millrace
