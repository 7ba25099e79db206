// Mailboxes: how stages hand messages to each other, wherever they run.
//
// An Inbox belongs to one stage and is read by its one thread. An Outbox is a door to somebody's inbox and may be used
// by any thread. Between threads the message itself moves (local_mailbox); between processes it travels as one encoded
// frame (zmq_mailbox). send() never blocks and never drops in silence: when the other side cannot take more, the sender
// is told and keeps the message.
#pragma once

#include <memory>
#include <optional>

#include "base/bounded_queue.h"
#include "base/status.h"
#include "wire/messages.h"

namespace millrace {

inline constexpr int kMailboxCapacity = 16384;  // messages; also the ZeroMQ high-water mark

class Inbox {
 public:
  virtual ~Inbox() = default;
  // The next message; waits up to timeout_ms (0: does not wait). Malformed frames are counted, logged and skipped.
  virtual std::optional<wire::Message> receive(int timeout_ms) = 0;
};

class Outbox {
 public:
  virtual ~Outbox() = default;
  // kResourceExhausted: the receiver's queue is full, try again later; kUnavailable: there is no receiver now. The
  // message is left untouched unless the result is OK.
  virtual Status send(wire::Message& message) = 0;
};

// An inbox and the outboxes to it inside one process: messages move, nothing is encoded.
struct LocalMailbox {
  std::unique_ptr<Inbox> inbox;
  std::shared_ptr<Outbox> outbox;
};
LocalMailbox make_local_mailbox();

}  // namespace millrace
