// Addresses of the TCP relay: numeric hosts and ports ("127.0.0.1:0", "[::1]:7000"), the sockets made from them, and
// the name of an instance, "127.0.0.1:41234#9f0c2b61d3a8e754" (where it listens, and which instance it is).
//
// Host names are not looked up: a look-up may block for seconds.
// Thread safety: free functions and values.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace millrace::tcp {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;

  bool loopback() const;
  bool wildcard() const;  // 0.0.0.0 or ::
  uint16_t port() const;
  std::string to_string() const;  // as parse_host_port() takes it
};

// Whether a relay may listen there with this secret, which is empty where there is none: the address stands in
// descriptors, so it is one that peers reach; beyond loopback there must be a secret. kInvalidArgument names what is
// not.
Status check_reach(const SocketAddress& listen, std::string_view secret);

// kInvalidArgument: not a numeric host and a port from 0 to 65535.
Result<SocketAddress> parse_host_port(std::string_view text);

struct InstanceAddress {
  SocketAddress socket;
  uint64_t instance = 0;
};
std::string format_instance(const SocketAddress& socket, uint64_t instance);
Result<InstanceAddress> parse_instance(std::string_view text);

// A listening socket, non-blocking, close-on-exec; `bound` is where it listens (the port that the kernel chose).
// kConflict: the port is taken. kInvalidArgument: no such address here.
Result<int> listen_at(const SocketAddress& address, SocketAddress& bound);

// A socket that is connecting (non-blocking): wait until it is writable, then ask connect_result().
Result<int> start_connect(const SocketAddress& address);
Status connect_result(int fd);

// The kernel ends a connection of which nothing was acknowledged for so long. It would go on for minutes, at ever
// longer intervals, so that a network that is back after ten seconds is not noticed for another ten.
void give_up_after(int fd, int silent_ms);

// Accepts one connection, non-blocking, without delay of small frames; -1 with errno where there is none.
int accept_one(int listener);

}  // namespace millrace::tcp
