// What the coordinator needs of its environment: outboxes to stages, the data plane, the supervisor. Production code
// has sockets and relays behind these interfaces, the simulated cluster simulated ones.
//
// Owner: app/instance.h; both outlive the coordinator. Thread safety: called on the coordinator's thread or under its
// lock; Payloads::give() on any; see take() for its `done`.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "control/mailbox.h"
#include "payload/value.h"
#include "pipeline/membership.h"
#include "wire/messages.h"

namespace millrace {

class CoordinatorEnv {
 public:
  virtual ~CoordinatorEnv() = default;
  // An outbox to the process that listens there; null: the endpoint is not usable.
  virtual std::shared_ptr<Outbox> open(const std::string& endpoint) = 0;
  // A replica has a holder; its worker may still load.
  virtual void joined(const ReplicaView&) {}
  // A replica lost its holder: the supervisor restarts what is local.
  virtual void lost(const ReplicaView&, const std::string& /*reason*/) {}
  // After every tick of a CoordinatorThread.
  virtual void ticked(int64_t /*now_ms*/) {}
};

// The coordinator's side of the data plane.
class Payloads {
 public:
  using Taken = std::function<void(Result<Value>)>;

  virtual ~Payloads() = default;
  // Offers a value to one stage. What comes back goes into the control message; nothing waits for the reader. It may
  // copy the value, so it is called without a lock that others wait for; a forget() may overtake it.
  virtual Result<wire::Payload> give(ReqId id, const Value& value, const wire::Peer& to) = 0;
  // `done` is called exactly once, within timeout_ms, on any thread, perhaps before this returns.
  virtual void take(ReqId id, const wire::Payload& payload, int timeout_ms, Taken done) = 0;
  // The request has ended: nothing of it is offered or fetched any more. What is being fetched still gets its `done`.
  virtual void forget(ReqId id) = 0;
  // Called with every tick of the coordinator.
  virtual void tick(int64_t /*now_ms*/) {}
};

}  // namespace millrace
