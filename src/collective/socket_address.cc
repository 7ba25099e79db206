#include "collective/socket_address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

namespace millrace::collective {
namespace {

constexpr std::size_t kMaxAddresses = 16;  // of one name

const sockaddr_in& as_v4(const SocketAddress& a) { return reinterpret_cast<const sockaddr_in&>(a.storage); }
const sockaddr_in6& as_v6(const SocketAddress& a) { return reinterpret_cast<const sockaddr_in6&>(a.storage); }

}  // namespace

bool SocketAddress::loopback() const {
  if (v4()) return (ntohl(as_v4(*this).sin_addr.s_addr) >> 24) == 127;
  const in6_addr& host = as_v6(*this).sin6_addr;
  return IN6_IS_ADDR_LOOPBACK(&host) || (IN6_IS_ADDR_V4MAPPED(&host) && host.s6_addr[12] == 127);
}

uint16_t SocketAddress::port() const { return ntohs(v4() ? as_v4(*this).sin_port : as_v6(*this).sin6_port); }

void SocketAddress::set_port(uint16_t port) {
  if (v4()) {
    reinterpret_cast<sockaddr_in&>(storage).sin_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in6&>(storage).sin6_port = htons(port);
  }
}

std::string SocketAddress::host() const {
  char text[INET6_ADDRSTRLEN] = "?";
  const void* bytes = v4() ? static_cast<const void*>(&as_v4(*this).sin_addr) : &as_v6(*this).sin6_addr;
  inet_ntop(storage.ss_family, bytes, text, sizeof(text));
  return text;
}

std::string SocketAddress::to_string() const {
  return v4() ? fmt::format("{}:{}", host(), port()) : fmt::format("[{}]:{}", host(), port());
}

Result<std::vector<SocketAddress>> resolve(const std::string& host, uint16_t port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int code = getaddrinfo(host.c_str(), nullptr, &hints, &found); code != 0) {
    return error(StatusCode::kUnavailable, "cannot resolve the host '{}': {}", host.substr(0, 256), gai_strerror(code));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
  std::vector<SocketAddress> addresses;
  for (const addrinfo* a = found; a != nullptr && addresses.size() < kMaxAddresses; a = a->ai_next) {
    if (a->ai_family != AF_INET && a->ai_family != AF_INET6) continue;
    SocketAddress address;
    // Fits: the families above are those of sockaddr_in and sockaddr_in6.
    std::memcpy(&address.storage, a->ai_addr, a->ai_addrlen);
    address.size = a->ai_addrlen;
    address.set_port(port);
    addresses.push_back(address);
  }
  if (addresses.empty()) {
    return error(StatusCode::kUnavailable, "the host '{}' has no IPv4 or IPv6 address", host.substr(0, 256));
  }
  return addresses;
}

Result<SocketAddress> local_address_towards(const SocketAddress& peer) {
  // connect() of a datagram socket only chooses the route.
  const int fd = socket(peer.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  SocketAddress local;
  local.size = sizeof(local.storage);
  const bool found = fd >= 0 && connect(fd, reinterpret_cast<const sockaddr*>(&peer.storage), peer.size) == 0 &&
                     getsockname(fd, reinterpret_cast<sockaddr*>(&local.storage), &local.size) == 0;
  const int why = errno;
  if (fd >= 0) close(fd);
  if (!found) return error(StatusCode::kUnavailable, "no route to {}: {}", peer.to_string(), std::strerror(why));
  // The route's port is the datagram socket's; the listener wants one of its own.
  local.set_port(0);
  return local;
}

Result<int> listen_at(const SocketAddress& address, int backlog, SocketAddress& bound) {
  const int fd = socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return error(StatusCode::kUnavailable, "socket: {}", std::strerror(errno));
  bound.size = sizeof(bound.storage);
  // Without SO_REUSEADDR: the port is 0, and a port that the kernel chooses is free.
  if (bind(fd, reinterpret_cast<const sockaddr*>(&address.storage), address.size) != 0 || listen(fd, backlog) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&bound.storage), &bound.size) != 0) {
    const int why = errno;
    close(fd);
    return error(StatusCode::kUnavailable, "cannot listen at {}: {}", address.to_string(), std::strerror(why));
  }
  return fd;
}

}  // namespace millrace::collective
