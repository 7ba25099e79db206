// How every ZeroMQ socket of the control plane is opened: with its limits, its security and a monitor of what
// becomes of its connections. For control/ alone; zmq.h is included by .cc files only.
//
// Limits: libzmq's defaults are unlimited or wait for ever, so every one is set here. Connections over tcp have
// heartbeats; a peer on the same machine has none, because the kernel reports when it is gone, and one that is merely
// slow or stopped for a while must not lose its messages.
//
// Security: tcp that other machines reach is refused without a shared key. With a key, tcp is CURVE, loopback too; ipc
// and inproc are as private as their folder and process, and ignore it.
//
// Thread safety: the functions from any thread; a socket belongs to one thread at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "control/endpoint.h"
#include "control/shared_key.h"
#include "control/zmq_context.h"

namespace millrace {

inline constexpr int kLingerMs = 200;             // at most this long may close() hold up the last frames
inline constexpr int kReconnectMs = 20;           // between two tries to reach a receiver that is not there yet,
inline constexpr int kReconnectMaxMs = 320;       // doubled up to this
inline constexpr int kConnectTimeoutMs = 2000;    // of one try over tcp; else the kernel's, minutes
inline constexpr int kHandshakeTimeoutMs = 2000;  // a peer that connects and stays silent is dropped
inline constexpr int kBindRetryMs = 500;          // a socket file's last owner may be on its way out
inline constexpr int kListenBacklog = 256;        // connections that wait to be accepted

// tcp alone. A peer that is gone without a word is noticed within kHeartbeatIvlMs + kHeartbeatTimeoutMs = 2 s.
inline constexpr int kHeartbeatIvlMs = 500;       // between two pings
inline constexpr int kHeartbeatTimeoutMs = 1500;  // without an answer, or anything else: the connection is cut
inline constexpr int kHeartbeatTtlMs = 2000;      // the peer does the same with us
inline constexpr int kKeepaliveIdleS = 2;         // the kernel's own, for what no heartbeat sees: half-open handshakes
inline constexpr int kKeepaliveIntervalS = 1;
inline constexpr int kKeepaliveProbes = 2;
// What waits unread in a tcp receiver's own queue. While it is full nothing is read, pings neither, until half of it is
// taken; so it is short, and what is over stays with the sender and in the kernel.
inline constexpr int kTcpReceiveHighWater = 1024;

// Is the peer of a connecting socket there? Shared with the thread that handles its events.
struct LinkState {
  std::atomic<bool> connected{false};
  std::atomic<bool> refused{false};  // the last try found a peer, which hung up in the handshake
};

struct SocketPlan {
  int type = 0;  // ZMQ_PUSH ...
  Endpoint endpoint;
  bool bind = false;
  int64_t max_frame_bytes = 0;
  int send_high_water = 0;  // messages
  int receive_high_water = 0;
  int linger_ms = 0;
  bool refuse_unconnected = false;   // else messages wait for a peer that is not there
  const SharedKey* key = nullptr;    // for the time of the call
  bool public_without_key = false;   // the operator asked for it
  bool heartbeats = true;            // over tcp; the peer is a program of ours
  std::shared_ptr<LinkState> state;  // of a connecting socket; or none
};

struct SocketClose {
  void operator()(void* socket) const;
};
using Socket = std::unique_ptr<void, SocketClose>;

struct OpenedSocket {
  Socket socket;
  std::string endpoint;  // with the real port
};

// kInvalidArgument for an endpoint that may not be used so, kUnavailable where it is in use, kInternal for the rest.
Result<OpenedSocket> open_socket(ZmqContext& context, const SocketPlan& plan);

}  // namespace millrace
