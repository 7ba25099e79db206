// Mailboxes over ZeroMQ: PUSH to PULL, one frame a message. docs/control-plane.md describes limits, keys and losses.
//
// An outbox with kRefuse is connected so that a frame is never parked for a receiver that is not there. What send()
// took and the receiver has not read is lost when either side or the connection ends: messages are acknowledged where
// it matters, by other messages.
//
// Endpoints of inproc:// never touch ZeroMQ: the messages move as in a local mailbox, by the same rules.
//
// Thread safety: outboxes from any thread; an inbox from one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "control/mailbox.h"
#include "control/zmq_context.h"
#include "control/zmq_socket.h"

namespace millrace {

// What an outbox does with a message while its receiver is not connected: refuse it, so that nothing stale waits for
// the process that binds that endpoint next, or keep it, where the endpoint belongs to one incarnation alone.
enum class BeforeConnected { kRefuse, kKeep };

struct OutboxOptions {
  BeforeConnected policy = BeforeConnected::kRefuse;
  const SharedKey* key = nullptr;      // for tcp; used during the call
  int queue_limit = kMailboxCapacity;  // messages on their way to this peer on our side; more are refused. (inproc:
                                       // the receiver's queue is all)
};

// bind_inbox() replaces a dead socket file of the same name; kUnavailable where the endpoint is in use.
Result<std::unique_ptr<Inbox>> bind_inbox(ZmqContext& context, const std::string& endpoint,
                                          const SharedKey* key = nullptr);
Result<std::shared_ptr<Outbox>> connect_outbox(ZmqContext& context, const std::string& endpoint,
                                               BeforeConnected policy);
Result<std::shared_ptr<Outbox>> connect_outbox(ZmqContext& context, const std::string& endpoint,
                                               const OutboxOptions& options);

}  // namespace millrace
