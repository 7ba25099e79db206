// An inbox or an outbox with the ZeroMQ context that it lives in, for sockets outside a pipeline's network.
// Owner: the links that were opened with it (transfer_sockets.h, range_processes.h). The context outlives its socket.
// Thread safety: as the mailbox's.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "control/zmq_mailbox.h"

namespace millrace {

struct HeldInbox final : Inbox {
  HeldInbox(std::shared_ptr<ZmqContext> zmq, std::unique_ptr<Inbox> inbox)
      : zmq(std::move(zmq)), inbox(std::move(inbox)) {}
  std::optional<wire::Message> receive(int timeout_ms) override { return inbox->receive(timeout_ms); }
  std::shared_ptr<Waker> waker() override { return inbox->waker(); }
  std::string endpoint() const override { return inbox->endpoint(); }

  const std::shared_ptr<ZmqContext> zmq;
  const std::unique_ptr<Inbox> inbox;
};

struct HeldOutbox final : Outbox {
  HeldOutbox(std::shared_ptr<ZmqContext> zmq, std::shared_ptr<Outbox> outbox)
      : zmq(std::move(zmq)), outbox(std::move(outbox)) {}
  Status send(wire::Message& message) override { return outbox->send(message); }

  const std::shared_ptr<ZmqContext> zmq;
  const std::shared_ptr<Outbox> outbox;
};

}  // namespace millrace
