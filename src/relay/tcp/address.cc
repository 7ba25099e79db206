#include "relay/tcp/address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>

#include "relay/tcp/limits.h"

namespace millrace::tcp {
namespace {

const sockaddr_in& as_v4(const SocketAddress& a) { return reinterpret_cast<const sockaddr_in&>(a.storage); }
const sockaddr_in6& as_v6(const SocketAddress& a) { return reinterpret_cast<const sockaddr_in6&>(a.storage); }

// Without Nagle's algorithm: a REQUEST would else wait for the acknowledgement of the small frame before it, which the
// peer may delay for 40 ms (tcp(7), TCP_NODELAY).
void set_no_delay(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

template <typename Int>
bool parse_number(std::string_view text, int base, Int& value) {
  const auto [end, errc] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  return errc == std::errc() && end == text.data() + text.size();
}

}  // namespace

// Also ::ffff:127.0.0.1, the form in which an IPv6 socket shows an IPv4 peer (RFC 4291, 2.5.5.2). What counts as
// loopback needs no secret, so anything that is not certain is not.
bool SocketAddress::loopback() const {
  if (storage.ss_family == AF_INET) return (ntohl(as_v4(*this).sin_addr.s_addr) >> 24) == 127;
  const in6_addr& host = as_v6(*this).sin6_addr;
  return IN6_IS_ADDR_LOOPBACK(&host) || (IN6_IS_ADDR_V4MAPPED(&host) && host.s6_addr[12] == 127);
}

bool SocketAddress::wildcard() const {
  if (storage.ss_family == AF_INET) return as_v4(*this).sin_addr.s_addr == htonl(INADDR_ANY);
  const in6_addr& host = as_v6(*this).sin6_addr;
  return IN6_IS_ADDR_UNSPECIFIED(&host);
}

uint16_t SocketAddress::port() const {
  return ntohs(storage.ss_family == AF_INET ? as_v4(*this).sin_port : as_v6(*this).sin6_port);
}

std::string SocketAddress::to_string() const {
  char host[INET6_ADDRSTRLEN] = "?";
  if (storage.ss_family == AF_INET) {
    inet_ntop(AF_INET, &as_v4(*this).sin_addr, host, sizeof(host));
    return fmt::format("{}:{}", host, port());
  }
  inet_ntop(AF_INET6, &as_v6(*this).sin6_addr, host, sizeof(host));
  return fmt::format("[{}]:{}", host, port());
}

Result<SocketAddress> parse_host_port(std::string_view text) {
  const auto refuse = [&] {
    return invalid_argument("address is '{}'; wanted a numeric host and a port, as in 127.0.0.1:0 or [::1]:7000",
                            text.substr(0, 64));
  };
  // The last one: an IPv6 address has colons, too. Without its brackets the part before the last colon is no IPv4
  // address, and the text is refused.
  const std::size_t colon = text.rfind(':');
  uint16_t port = 0;
  if (colon == std::string_view::npos || !parse_number(text.substr(colon + 1), 10, port)) return refuse();
  std::string host(text.substr(0, colon));
  if (host.find('\0') != std::string::npos) return refuse();  // inet_pton() would not look beyond it
  SocketAddress address;
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
    // Zone ids (fe80::1%eth0) are not taken: inet_pton() does not know them, and they mean nothing on another host.
    sockaddr_in6 v6{};
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(port);
    if (inet_pton(AF_INET6, host.c_str(), &v6.sin6_addr) != 1) return refuse();
    std::memcpy(&address.storage, &v6, sizeof(v6));
    address.size = sizeof(v6);
    return address;
  }
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  v4.sin_port = htons(port);
  if (inet_pton(AF_INET, host.c_str(), &v4.sin_addr) != 1) return refuse();
  std::memcpy(&address.storage, &v4, sizeof(v4));
  address.size = sizeof(v4);
  return address;
}

// 16 digits always, so parse_instance() can count them from the end: '#' is in no address.
std::string format_instance(const SocketAddress& socket, uint64_t instance) {
  return fmt::format("{}#{:016x}", socket.to_string(), instance);
}

Result<InstanceAddress> parse_instance(std::string_view text) {
  const std::size_t hash = text.rfind('#');
  InstanceAddress address;
  if (hash == std::string_view::npos || text.size() - hash != 17 ||
      !parse_number(text.substr(hash + 1), 16, address.instance)) {
    return invalid_argument("tcp relay address is '{}'; wanted host:port#instance", text.substr(0, 64));
  }
  ASSIGN_OR_RETURN(address.socket, parse_host_port(text.substr(0, hash)));
  if (address.socket.port() == 0) return invalid_argument("the port of tcp relay address '{}' is 0", text);
  return address;
}

Result<int> listen_at(const SocketAddress& address, SocketAddress& bound) {
  const int fd = socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return error(StatusCode::kUnavailable, "socket: {}", std::strerror(errno));
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  // One family a socket, as the address promises: without the option ::ffff:192.0.2.1 would listen for IPv4 (ipv6(7)).
  if (address.storage.ss_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on));
  bound.size = sizeof(bound.storage);
  if (bind(fd, reinterpret_cast<const sockaddr*>(&address.storage), address.size) != 0 ||
      listen(fd, kListenBacklog) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&bound.storage), &bound.size) != 0) {
    const int why = errno;
    close(fd);
    return error(why == EADDRINUSE ? StatusCode::kConflict : StatusCode::kInvalidArgument, "cannot listen at {}: {}",
                 address.to_string(), std::strerror(why));
  }
  return fd;
}

Result<int> start_connect(const SocketAddress& address) {
  const int fd = socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return error(StatusCode::kUnavailable, "socket: {}", std::strerror(errno));
  set_no_delay(fd);
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address.storage), address.size) != 0 && errno != EINPROGRESS) {
    const int why = errno;
    close(fd);
    return error(StatusCode::kUnavailable, "cannot connect: {}", std::strerror(why));
  }
  return fd;
}

Status connect_result(int fd) {
  // After a non-blocking connect() the outcome stands in SO_ERROR once the socket is writable (connect(2),
  // EINPROGRESS); reading it clears it.
  int why = 0;
  socklen_t size = sizeof(why);
  if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &why, &size) != 0) why = errno;
  if (why == 0) return ok_status();
  return error(StatusCode::kUnavailable, "cannot connect: {}", std::strerror(why));
}

void give_up_after(int fd, int silent_ms) {
  // tcp(7), TCP_USER_TIMEOUT: a connection with unacknowledged data ends with ETIMEDOUT after so many ms. PINGs make
  // sure that there is such data while anything is expected.
  const auto timeout_ms = static_cast<unsigned>(silent_ms);
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof(timeout_ms));
}

int accept_one(int listener) {
  // On Linux the flags of the listener are not inherited, accept(2).
  const int fd = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd >= 0) set_no_delay(fd);
  return fd;
}

Status check_reach(const SocketAddress& listen, std::string_view secret) {
  if (!secret.empty() && secret.size() < kMinSecretBytes) {
    return invalid_argument("relay option secret has {} bytes; wanted at least {}", secret.size(), kMinSecretBytes);
  }
  // The bound address goes into every descriptor as the endpoint; 0.0.0.0 would name the reader's host there.
  if (listen.wildcard()) {
    return invalid_argument("relay option listen is {}; wanted the one address at which peers reach this host",
                            listen.to_string());
  }
  if (!listen.loopback() && secret.empty()) {
    return invalid_argument("relay option listen is {}, beyond this host, and there is no secret; wanted one",
                            listen.to_string());
  }
  return ok_status();
}

}  // namespace millrace::tcp
