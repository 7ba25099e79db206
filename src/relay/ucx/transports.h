// Which transports and network devices UCX is told to use, from the relay's options and the environment.
// Thread safety: values; free functions without state.
#pragma once

#include <sys/socket.h>

#include <string>

#include "base/status.h"

namespace millrace::ucx {

inline constexpr std::size_t kMaxTransportsBytes = 256;
inline constexpr std::size_t kMaxEndpointBytes = 64;  // "[fe80::1]:65535"

struct Transports {
  std::string tls;       // "posix,cma,tcp,self", as UCX_TLS
  std::string devices;   // "lo", as UCX_NET_DEVICES; empty: all
  std::string ip;        // where peers connect to: the first address of the devices
  bool memory = false;   // has shared memory: puts are offered in a pool that peers map
  bool network = false;  // may reach other hosts
};

// `listen`: "ucx:TRANSPORTS[@DEVICES]", or anything else for what the environment (null: not set) or else the default
// says. kInvalidArgument: empty, too long, or with other characters than UCX's lists have.
// Connections are made over tcp, whatever they use then: it is added to the list where it is missing.
Result<Transports> choose_transports(const std::string& listen, const char* env_tls, const char* env_devices);

// "127.0.0.1:4711" and "[::1]:4711", numbers only; and back. The storage is as large as connect() wants it.
std::string endpoint_text(const sockaddr_storage& address);
Result<sockaddr_storage> parse_endpoint(const std::string& text);
socklen_t endpoint_bytes(const sockaddr_storage& address);
bool is_loopback(const sockaddr_storage& address);

}  // namespace millrace::ucx
