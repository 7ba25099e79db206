// SocketAddress: an IPv4 or IPv6 address with a port, and sockets made of it.
//
// Thread safety: values and free functions. resolve() may block as long as the system's resolver does; the rest does
// not.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace millrace::collective {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;

  bool loopback() const;
  bool v4() const { return storage.ss_family == AF_INET; }
  uint16_t port() const;
  void set_port(uint16_t port);
  std::string host() const;  // numeric
  std::string to_string() const;
};

// Of a host's name or its numeric address; at least one.
Result<std::vector<SocketAddress>> resolve(const std::string& host, uint16_t port);
// The address of this host from which packets to `peer` leave, with port 0. Sends nothing.
Result<SocketAddress> local_address_towards(const SocketAddress& peer);

// Non-blocking, close-on-exec. `bound`: where it listens, with the port that the kernel chose.
Result<int> listen_at(const SocketAddress& address, int backlog, SocketAddress& bound);

}  // namespace millrace::collective
