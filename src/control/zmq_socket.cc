#include "control/zmq_socket.h"

#include <netdb.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <zmq.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "control/counters.h"
#include "control/socket_service.h"

namespace millrace {
namespace {

constexpr int kRetryStepMs = 10;

Status zmq_failure(std::string_view what, const std::string& endpoint) {
  return internal_error("{} {}: {}", what, endpoint, zmq_strerror(zmq_errno()));
}

bool set(void* socket, int option, auto value) { return zmq_setsockopt(socket, option, &value, sizeof value) == 0; }
bool set_text(void* socket, int option, const std::string& value) {
  return zmq_setsockopt(socket, option, value.data(), value.size()) == 0;
}

bool set_limits(void* socket, const SocketPlan& plan) {
  const bool tcp = plan.endpoint.transport == Transport::kTcp;
  // See kTcpReceiveHighWater: over tcp a full receive queue also stops the heartbeats.
  const int receive =
      tcp && plan.receive_high_water > kTcpReceiveHighWater ? kTcpReceiveHighWater : plan.receive_high_water;
  // All before bind or connect: ZeroMQ applies most options to later connections only.
  const bool good = set(socket, ZMQ_MAXMSGSIZE, plan.max_frame_bytes) &&
                    set(socket, ZMQ_SNDHWM, plan.send_high_water) && set(socket, ZMQ_RCVHWM, receive) &&
                    set(socket, ZMQ_LINGER, plan.linger_ms) && set(socket, ZMQ_HANDSHAKE_IVL, kHandshakeTimeoutMs) &&
                    set(socket, ZMQ_RECONNECT_IVL, kReconnectMs) &&
                    set(socket, ZMQ_RECONNECT_IVL_MAX, kReconnectMaxMs) && set(socket, ZMQ_BACKLOG, kListenBacklog) &&
                    set(socket, ZMQ_IMMEDIATE, plan.refuse_unconnected ? 1 : 0);
  if (!tcp) return good;
  // A socket for IPv4 addresses alone stays one, so that it works where the machine has no IPv6.
  const bool ipv4 = !plan.endpoint.ipv6 && plan.endpoint.name.find_first_not_of("0123456789.") == std::string::npos;
  const bool tuned =
      good && set(socket, ZMQ_IPV6, ipv4 ? 0 : 1) && set(socket, ZMQ_CONNECT_TIMEOUT, kConnectTimeoutMs) &&
      set(socket, ZMQ_TCP_KEEPALIVE, 1) && set(socket, ZMQ_TCP_KEEPALIVE_IDLE, kKeepaliveIdleS) &&
      set(socket, ZMQ_TCP_KEEPALIVE_INTVL, kKeepaliveIntervalS) && set(socket, ZMQ_TCP_KEEPALIVE_CNT, kKeepaliveProbes);
  if (!tuned || !plan.heartbeats) return tuned;
  return set(socket, ZMQ_HEARTBEAT_IVL, kHeartbeatIvlMs) && set(socket, ZMQ_HEARTBEAT_TIMEOUT, kHeartbeatTimeoutMs) &&
         set(socket, ZMQ_HEARTBEAT_TTL, kHeartbeatTtlMs);
}

Status secure(ZmqContext& context, void* socket, const SocketPlan& plan) {
  if (plan.endpoint.transport != Transport::kTcp) return ok_status();
  const std::string name = plan.endpoint.to_string();
  if (plan.key == nullptr) {
    // Loopback without a key is open to every user of this machine; docs/control-plane.md names it.
    if (plan.endpoint.local() || plan.public_without_key) return ok_status();
    return invalid_argument("{} is reached by other machines; wanted a shared key with it, or a loopback address",
                            name);
  }
  // One key pair for all: servers and clients prove with it that they are of this deployment, not their identity.
  bool good = set_text(socket, ZMQ_CURVE_SECRETKEY, plan.key->curve_secret()) &&
              set_text(socket, ZMQ_CURVE_PUBLICKEY, plan.key->curve_public());
  if (plan.bind) {
    // Before a peer can connect: without a handler the library would accept every peer that knows our public key.
    RETURN_IF_ERROR(context.service().authenticate());
    // The domain carries the wanted client key to the ZAP handler, which so needs no state; see zap.h.
    good = good && set(socket, ZMQ_CURVE_SERVER, 1) && set_text(socket, ZMQ_ZAP_DOMAIN, plan.key->curve_public());
  } else {
    good = good && set_text(socket, ZMQ_CURVE_SERVERKEY, plan.key->curve_public());
  }
  return good ? ok_status() : zmq_failure("cannot secure", name);
}

// Without the port, which is another one at each try. Asked a moment after the event: one that has gone has none.
std::string address_of(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  char host[NI_MAXHOST];
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  const bool known = ::getpeername(fd, generic, &size) == 0 && address.ss_family != AF_UNIX &&
                     ::getnameinfo(generic, size, host, sizeof host, nullptr, 0, NI_NUMERICHOST) == 0;
  return known ? host : "";
}

// What the library's monitor reports of one socket.
class Listener {
 public:
  Listener(std::shared_ptr<LinkState> state, std::string peer) : state_(std::move(state)), peer_(std::move(peer)) {}

  // Two frames: the event's number and value, and our own address. False after the last one.
  bool operator()(void* monitor) {
    zmq_msg_t frame;
    zmq_msg_init(&frame);
    bool go_on = true;
    // All that is there: an i/o thread of the library waits for a monitor that is not read.
    while (go_on && zmq_msg_recv(&frame, monitor, ZMQ_DONTWAIT) >= 0) {
      uint16_t event = 0;
      int32_t value = -1;
      if (zmq_msg_size(&frame) >= sizeof event + sizeof value) {
        const char* bytes = static_cast<const char*>(zmq_msg_data(&frame));
        // The frame packs 16 and 32 bits without padding, so the second value is not aligned.
        std::memcpy(&event, bytes, sizeof event);
        std::memcpy(&value, bytes + sizeof event, sizeof value);
      }
      while (zmq_msg_more(&frame) != 0 && zmq_msg_recv(&frame, monitor, ZMQ_DONTWAIT) >= 0) continue;
      note(event, value);
      go_on = event != ZMQ_EVENT_MONITOR_STOPPED;
    }
    zmq_msg_close(&frame);
    return go_on;
  }

 private:
  // Of connections that come and go the value is the file descriptor.
  void note(uint16_t event, int32_t value) {
    switch (event) {
      case ZMQ_EVENT_ACCEPTED:
        // By descriptor, as later events of the connection carry nothing else. The number may be used again by another
        // connection, which then overwrites the entry with its own ACCEPTED.
        peers_[value] = address_of(value);
        return;
      case ZMQ_EVENT_HANDSHAKE_SUCCEEDED:
        // In this order: a send() that sees neither reports a receiver that is not there, which is true for a moment.
        if (state_) state_->refused.store(false), state_->connected.store(true);
        return;
      case ZMQ_EVENT_HANDSHAKE_FAILED_AUTH:
        return refused(LinkEvent::kRefusedAuth);
      case ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL:
        return refused(LinkEvent::kRefusedProtocol);
      case ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL:
        return refused(LinkEvent::kRefusedOther);
      case ZMQ_EVENT_DISCONNECTED:
        // A connecting socket whose connection ends before the handshake was complete found a peer that hung up.
        if (state_ && !state_->connected.exchange(false)) state_->refused.store(true);
        // A refused peer is disconnected next: that is no loss.
        ended(std::exchange(refused_, std::nullopt), value);
        return;
    }
  }
  void refused(LinkEvent event) {
    if (state_) state_->refused.store(true);
    refused_ = event;
    count(event);
  }
  void ended(std::optional<LinkEvent> refused, int fd) {
    // Removed in each case, so that peers_ is as large as the connections that are open.
    const auto found = peers_.extract(fd);
    if (!refused) return count(LinkEvent::kLost);
    log_refused(*refused, found ? found.mapped() : peer_, monotonic_ms());
  }

  std::shared_ptr<LinkState> state_;
  std::string peer_;                  // where nothing better is known
  std::map<int, std::string> peers_;  // of accepted connections, by descriptor
  std::optional<LinkEvent> refused_;  // the last one, until it is disconnected
};

// The monitor's reader is given to the service's thread, which closes it when the monitor has sent its last event and
// not before: the library waits where the reader is slow or gone.
Status listen_to(ZmqContext& context, void* socket, const SocketPlan& plan) {
  static std::atomic<uint64_t> g_monitors{0};
  const std::string address = fmt::format("inproc://millrace.monitor.{}", g_monitors.fetch_add(1));
  // Not CONNECTED: it comes before the handshake and would show a peer with another key as connected.
  constexpr int kEvents = ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH |
                          ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                          ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_MONITOR_STOPPED;
  void* reader = zmq_socket(context.handle(), ZMQ_PAIR);
  if (reader == nullptr) return zmq_failure("cannot open", address);
  set(reader, ZMQ_LINGER, 0);
  Status status = ok_status();
  if (zmq_socket_monitor(socket, address.c_str(), kEvents) != 0 || zmq_connect(reader, address.c_str()) != 0) {
    status = zmq_failure("cannot watch", address);
  } else {
    status = context.service().add_socket(reader, Listener(plan.state, plan.bind ? "" : plan.endpoint.to_string()));
  }
  if (status.ok()) return status;
  zmq_socket_monitor(socket, nullptr, 0);  // while its reader is still there
  zmq_close(reader);
  return status;
}

// ZeroMQ replaces a socket file without checking whether a process listens at it.
Status wait_until_free(const Endpoint& endpoint) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  CHECK(endpoint.name.size() < sizeof address.sun_path);
  std::memcpy(address.sun_path, endpoint.name.data(), endpoint.name.size());
  for (int waited_ms = 0;; waited_ms += kRetryStepMs) {
    // A new socket for each try: one whose connect failed is not to be used again.
    const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return internal_error("no socket to look at {}: {}", endpoint.to_string(), std::strerror(errno));
    // The file alone shows nothing, as it outlives its process. The listener sees a connection that ends at once.
    const int result = ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address);
    const bool alive = result == 0 || errno == EAGAIN;  // EAGAIN: its backlog is full
    ::close(fd);
    if (!alive) return ok_status();
    if (waited_ms >= kBindRetryMs) {
      return error(StatusCode::kUnavailable, "cannot bind {}: a process listens there; wanted a path that is free",
                   endpoint.to_string());
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(kRetryStepMs));
  }
}

Result<std::string> bind(void* socket, const SocketPlan& plan) {
  ASSIGN_OR_RETURN(const std::string address, address_to_bind(plan.endpoint));
  // Two processes that bind one path at the same moment may both pass; run folders belong to one server each.
  if (plan.endpoint.transport == Transport::kIpc) RETURN_IF_ERROR(wait_until_free(plan.endpoint));
  if (zmq_bind(socket, address.c_str()) != 0) {
    const char* wanted =
        zmq_errno() == EADDRNOTAVAIL || zmq_errno() == ENODEV ? "; wanted an address of this host" : "";
    return error(StatusCode::kUnavailable, "cannot bind {}: {}{}", plan.endpoint.to_string(), zmq_strerror(zmq_errno()),
                 wanted);
  }
  if (plan.endpoint.transport != Transport::kTcp) return plan.endpoint.to_string();
  char real[kMaxEndpointBytes];
  std::size_t size = sizeof real;
  if (zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, real, &size) != 0) return zmq_failure("cannot ask for", address);
  ASSIGN_OR_RETURN(const Endpoint bound, parse_endpoint(std::string(real)));
  Endpoint reported = plan.endpoint;  // by the name that was asked for: others may need it
  reported.port = bound.port;
  return reported.to_string();
}

}  // namespace

void SocketClose::operator()(void* socket) const {
  zmq_socket_monitor(socket, nullptr, 0);
  zmq_close(socket);
}

Result<OpenedSocket> open_socket(ZmqContext& context, const SocketPlan& plan) {
  // 0 would be "no limit" for ZeroMQ.
  CHECK(plan.max_frame_bytes > 0 && plan.send_high_water > 0 && plan.receive_high_water > 0);
  OpenedSocket out;
  const std::string name = plan.endpoint.to_string();
  out.socket.reset(zmq_socket(context.handle(), plan.type));
  if (!out.socket) return zmq_failure("cannot open a socket for", name);
  if (!set_limits(out.socket.get(), plan)) return zmq_failure("cannot set the limits of", name);
  // Security before the address: a socket that is bound first would accept without it.
  RETURN_IF_ERROR(secure(context, out.socket.get(), plan));
  // The monitor before bind or connect too, so that LinkState misses no event.
  RETURN_IF_ERROR(listen_to(context, out.socket.get(), plan));
  if (plan.bind) {
    ASSIGN_OR_RETURN(out.endpoint, bind(out.socket.get(), plan));
    return out;
  }
  ASSIGN_OR_RETURN(const std::string address, address_to_connect(plan.endpoint));
  if (zmq_connect(out.socket.get(), address.c_str()) != 0) return zmq_failure("cannot connect to", name);
  out.endpoint = name;
  return out;
}

}  // namespace millrace
