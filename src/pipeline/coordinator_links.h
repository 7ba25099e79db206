// CoordinatorLinks: a process's outboxes to the coordinator of its pipeline, over hosts. When another server leads,
// move() takes them all there; a holder of one notices nothing but that its messages are answered by another session,
// as after a coordinator's restart.
//
// Owner: PipelineNetwork; what it made may outlive it. Thread safety: all functions from any thread.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/status.h"
#include "control/mailbox.h"

namespace millrace {

class CoordinatorLinks {
 public:
  using Open = std::function<Result<std::shared_ptr<Outbox>>(const std::string& control)>;
  CoordinatorLinks(std::string control, Open open) : open_(std::move(open)), control_(std::move(control)) {}

  Result<std::shared_ptr<Outbox>> connect();
  // Where one cannot be opened, that one stays where it was, and the first reason is returned.
  Status move(const std::string& control);

 private:
  class MovableOutbox;

  const Open open_;
  std::mutex mutex_;
  std::string control_;
  std::vector<std::weak_ptr<MovableOutbox>> outboxes_;
};

}  // namespace millrace
