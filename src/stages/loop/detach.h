// Detaching: received tensors get bytes of their own, so that the relay's go back to their sender.
//
// A stage that waits for one thing while it holds another (a fan-in, a payload before its stream, a chunk before its
// payload) would hold its senders' credits meanwhile; where the awaited thing needs such a credit, both would wait for
// ever. And what waits for a worker that is slow, or for a request that is congested, would keep the credits from all
// other requests of its sender. So what has to wait is copied, and only that: a stage that can begin at once reads the
// relay's own memory.
//
// Owner: the WorkQueue has the DetachBudget. Thread safety: detach() is free and without state; a DetachBudget is the
// loop's, its reservations go to any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>

#include "payload/value.h"
#include "stages/body.h"

namespace millrace::loop {

// All tensors in host memory, at most kMaxValueDepth containers deep, as restore() makes them.
void detach(Value& value);

// What a stage has copied for its worker's queue. Over the limit nothing is copied: then the senders' credits are the
// bound, and their other requests wait too.
class DetachBudget {
 public:
  explicit DetachBudget(std::size_t limit_bytes) : limit_bytes_(limit_bytes) {}

  // Where the tensors fit, they are copied, and are counted until the reservation is destroyed. nullptr: there was
  // nothing to copy, or no capacity.
  std::shared_ptr<void> detach(Value& value);
  // Deltas hold nothing of a relay.
  std::shared_ptr<void> detach(Body& body);
  std::size_t held_bytes() const { return held_->load(std::memory_order_relaxed); }

 private:
  const std::size_t limit_bytes_;
  std::shared_ptr<std::atomic<std::size_t>> held_ = std::make_shared<std::atomic<std::size_t>>(0);
};

}  // namespace millrace::loop
