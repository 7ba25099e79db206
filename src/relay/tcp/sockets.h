// Sockets: the TCP connections of a relay: a listener, the connections that peers opened (to which this relay writes),
// and those that it opened (from which it reads).
//
// Owner: the channel. Thread safety: the loop's thread, except address(), bound() and target_of(), which any may call.
#pragma once

#include <memory>

#include "relay/session/core.h"
#include "relay/tcp/address.h"
#include "relay/tcp/connection_set.h"

namespace millrace::tcp {

class Sockets {
 public:
  // The users are called with the links of their side. `carries_data`: DATA frames travel on the connections.
  Sockets(Core& core, LinkUser& writer, LinkUser& reader, bool carries_data);
  ~Sockets();
  Sockets(const Sockets&) = delete;
  Sockets& operator=(const Sockets&) = delete;

  Status open(const SocketAddress& listen);  // before the loop runs
  std::string address() const { return format_instance(bound_, key_of(core_.instance)); }
  const SocketAddress& bound() const { return bound_; }
  // What a descriptor's tail states of its writer, checked.
  Result<Target> target_of(const InstanceId& instance, std::string_view endpoint) const;

  Result<Link*> connect(const Target& target);
  void close(const Link& link, const Status& why);
  void flush();
  int64_t check_time(int64_t now_ms);
  void compensate_pause(int64_t now_ms) {
    accepted_.compensate_pause(now_ms);
    opened_.compensate_pause(now_ms);
  }
  void shut_down();

 private:
  void on_listener();
  bool evict_connection();

  Core& core_;
  SocketAddress bound_;
  int listener_ = -1;
  uint64_t listener_loop_id_ = 0;
  int64_t accept_again_ms_ = 0;  // not 0: accept() ran out of descriptors
  ConnectionSet accepted_;
  ConnectionSet opened_;
};

// Capabilities of a relay that is reached over sockets.
RelayCapabilities socket_capabilities(const char* name, const Core& core, const SocketAddress& bound);

}  // namespace millrace::tcp
