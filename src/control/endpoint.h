// Endpoint: where a control socket is bound or connects to, parsed and checked once.
//
//   ipc:///run/x.sock        a socket file; its folder's mode decides who may connect
//   tcp://127.0.0.1:30100    IPv4, tcp://[::1]:30100 IPv6, tcp://node7:30100 a name, tcp://*:30100 every interface;
//                            port 0 lets the system choose, where it is bound (the binder gets the real one)
//   inproc://name            between threads that share a ZmqContext
//
// Errors are kInvalidArgument and name the endpoint, what is wrong with it and what is wanted.
// Thread safety: values; pure functions, except where noted that one asks the system's resolver.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace millrace {

inline constexpr std::size_t kMaxIpcPathBytes = 107;     // sockaddr_un::sun_path without its final NUL
inline constexpr std::size_t kMaxHostBytes = 253;        // of a DNS name
inline constexpr std::size_t kMaxInprocNameBytes = 128;  // letters, digits, '-', '_', '.', '/'
inline constexpr std::size_t kMaxEndpointBytes = 512;    // of the text

enum class Transport : uint8_t { kIpc, kTcp, kInproc };

struct Endpoint {
  Transport transport = Transport::kIpc;
  std::string name;  // ipc: the path; tcp: the host ("*", "127.0.0.1", "::1", "node7"); inproc: the name
  uint16_t port = 0;
  bool ipv6 = false;  // the host is an IPv6 address, without its brackets

  std::string to_string() const;  // "tcp://[::1]:30100"
  // Only processes of this machine reach it. Of names, "localhost" alone counts: any other may resolve to anything.
  bool local() const;
  friend bool operator==(const Endpoint&, const Endpoint&) = default;
};

Result<Endpoint> parse_endpoint(std::string_view text);

// What the ZeroMQ library is given: "localhost" is 127.0.0.1, whatever the machine's hosts file has, and other names
// are looked up where the endpoint is bound (it only binds addresses). Asks the resolver, so it may take seconds there.
Result<std::string> address_to_bind(const Endpoint& endpoint);
// kInvalidArgument for what can only be bound: port 0 and "*".
Result<std::string> address_to_connect(const Endpoint& endpoint);

// Where processes of other hosts come to: tcp:// with one address (not one that stands for all of them) and a port that
// has a next one, where aborts are published. kInvalidArgument for anything else.
Status check_reachable(std::string_view text);

// `text` for an error message: cut, with everything that is not printable ASCII as '?'.
std::string quoted_endpoint(std::string_view text);

}  // namespace millrace
