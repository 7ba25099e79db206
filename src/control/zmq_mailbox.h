// Mailboxes over ZeroMQ: PUSH to PULL, one frame a message. zmq.h is included by the .cc alone.
//
// Every socket sets its limits (frame size, high-water marks, linger, handshake time): libzmq's defaults are unlimited
// or wait for ever. An outbox is connected with ZMQ_IMMEDIATE, so a frame is never parked for a receiver that is not
// there.
//
// Thread safety: ZmqContext and outboxes from any thread; an inbox from one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "control/mailbox.h"

namespace millrace {

inline constexpr int kLingerMs = 200;             // at most this long may close() hold up the last frames
inline constexpr int kReconnectMs = 20;           // between two tries to reach a receiver that is not there yet
inline constexpr int kHandshakeTimeoutMs = 2000;  // a peer that connects and stays silent is dropped

// One per process; outlives every socket made from it.
class ZmqContext {
 public:
  ZmqContext();
  ~ZmqContext();
  ZmqContext(const ZmqContext&) = delete;
  ZmqContext& operator=(const ZmqContext&) = delete;
  void* handle() const { return handle_; }

 private:
  void* handle_;
};

// What an outbox does with a message while its receiver is not connected: refuse it, so that nothing stale waits for
// whoever binds that endpoint next, or keep it, where the endpoint belongs to one incarnation alone.
enum class BeforeConnected { kRefuse, kKeep };

// Endpoints are "ipc:///path/to.sock". bind() replaces a dead socket file of the same name.
Result<std::unique_ptr<Inbox>> bind_inbox(ZmqContext& context, const std::string& endpoint);
Result<std::shared_ptr<Outbox>> connect_outbox(ZmqContext& context, const std::string& endpoint,
                                               BeforeConnected policy);

// Frames that this process received and could not decode.
uint64_t bad_frame_count();

}  // namespace millrace
