// Mailboxes: how stages hand messages to each other, wherever they run.
//
// Owner: an Inbox is owned by its stage, or by the coordinator, and read by that one thread. An Outbox is a connection
// to another stage's inbox and may be used by any thread. Between threads the message itself moves (local_mailbox);
// between processes it travels as one encoded frame (zmq_mailbox). send() never blocks and never drops in silence: when
// the receiver cannot take more, the sender gets an error and keeps the message.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/status.h"
#include "wire/messages.h"

namespace millrace {

inline constexpr int kMailboxCapacity = 16384;  // messages; also the ZeroMQ high-water mark

// Wakes the thread that waits in an inbox's receive(), for events that come another way (a finished transfer, a
// worker's result). Any thread; it may outlive the inbox, and then does nothing.
class Waker {
 public:
  virtual ~Waker() = default;
  // The receive() that waits now, or else the next one that finds no message, returns nullopt at once. Several wakes
  // before that are one. Cheap where no thread waits.
  virtual void wake() = 0;
};

class Inbox {
 public:
  virtual ~Inbox() = default;
  // The next message; waits up to timeout_ms (0: does not wait, negative: without a limit). nullopt also where it was
  // woken, and for a malformed frame, which is counted and dropped.
  virtual std::optional<wire::Message> receive(int timeout_ms) = 0;
  // Of this inbox, always the same one. Asked for by the inbox's own thread, or before that starts. An inbox that never
  // waits (of a test, of a simulation) has one that does nothing.
  virtual std::shared_ptr<Waker> waker();
  // Where outboxes connect to: with the real port where port 0 was asked for. Empty: it has none.
  virtual std::string endpoint() const { return {}; }
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
