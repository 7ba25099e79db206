#include "relay/ucx/transports.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

#include "relay/ucx/ucx_relay.h"

namespace millrace::ucx {
namespace {

constexpr std::string_view kPrefix = "ucx:";

std::vector<std::string_view> split(std::string_view list) {
  std::vector<std::string_view> words;
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    words.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

Status check_list(std::string_view what, std::string_view list) {
  const bool plain = std::all_of(list.begin(), list.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '_' || c == ',' || c == ':' || c == '.' || c == '-' || c == '^' || c == '\\';
  });
  if (list.empty() || list.size() > kMaxTransportsBytes || !plain) {
    return invalid_argument("UCX's {} are '{}'; wanted a list of names of at most {} bytes", what,
                            list.substr(0, kMaxTransportsBytes), kMaxTransportsBytes);
  }
  return ok_status();
}

// Whether UCX may use one of `names`, which stand for themselves, or the list excludes others only, or is "all".
bool allows(std::string_view tls, std::initializer_list<std::string_view> names) {
  const bool negative = tls.front() == '^';
  if (negative) tls.remove_prefix(1);
  bool named = false;
  for (const std::string_view word : split(tls)) {
    if (word == "all") return !negative;
    named = named || std::find(names.begin(), names.end(), word) != names.end();
  }
  return named != negative;
}

template <typename T>
sockaddr_storage stored(const T& address) {
  sockaddr_storage out{};
  static_assert(sizeof(address) <= sizeof(out));
  std::memcpy(&out, &address, sizeof(address));
  return out;
}

// Of an interface, with any port.
std::string text_of(const sockaddr* address) {
  if (address->sa_family == AF_INET6) {
    sockaddr_in6 v6 = *reinterpret_cast<const sockaddr_in6*>(address);
    v6.sin6_port = 0;
    return endpoint_text(stored(v6));
  }
  sockaddr_in v4 = *reinterpret_cast<const sockaddr_in*>(address);
  v4.sin_port = 0;
  return endpoint_text(stored(v4));
}

// The first address of the first of the devices that has one; of any that is no loopback, where the list names none
// that this host has ("all", or InfiniBand's).
std::string first_address(std::string_view devices) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return "127.0.0.1:0";
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, freeifaddrs);
  const auto usable = [](const ifaddrs* at) {
    return at->ifa_addr != nullptr && (at->ifa_flags & IFF_UP) != 0 &&
           (at->ifa_addr->sa_family == AF_INET || at->ifa_addr->sa_family == AF_INET6);
  };
  for (const std::string_view word : split(devices)) {
    const std::string_view name = word.substr(0, word.find(':'));
    for (const ifaddrs* at = list; at != nullptr; at = at->ifa_next) {
      if (usable(at) && name == at->ifa_name) return text_of(at->ifa_addr);
    }
  }
  for (const ifaddrs* at = list; at != nullptr; at = at->ifa_next) {
    if (usable(at) && (at->ifa_flags & IFF_LOOPBACK) == 0) return text_of(at->ifa_addr);
  }
  return "127.0.0.1:0";
}

}  // namespace

std::string endpoint_text(const sockaddr_storage& address) {
  char ip[INET6_ADDRSTRLEN] = {};
  if (address.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
    inet_ntop(AF_INET6, &v6.sin6_addr, ip, sizeof(ip));
    return fmt::format("[{}]:{}", ip, ntohs(v6.sin6_port));
  }
  const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
  inet_ntop(AF_INET, &v4.sin_addr, ip, sizeof(ip));
  return fmt::format("{}:{}", ip, ntohs(v4.sin_port));
}

Result<sockaddr_storage> parse_endpoint(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  const Status wrong = invalid_argument("a UCX relay's endpoint is {} bytes that are no \"IP:PORT\"", text.size());
  if (text.size() > kMaxEndpointBytes || colon == std::string::npos || colon + 1 == text.size()) return wrong;
  if (text.find('\0') != std::string::npos) return wrong;  // inet_pton() would not look beyond it
  uint16_t port = 0;
  const auto [end, fault] = std::from_chars(text.data() + colon + 1, text.data() + text.size(), port);
  if (fault != std::errc() || end != text.data() + text.size()) return wrong;
  sockaddr_in v4{};
  sockaddr_in6 v6{};
  if (text.front() == '[' && colon > 1 && text[colon - 1] == ']') {
    v6.sin6_family = AF_INET6;
    if (inet_pton(AF_INET6, text.substr(1, colon - 2).c_str(), &v6.sin6_addr) != 1) return wrong;
    v6.sin6_port = htons(port);
    return stored(v6);
  }
  v4.sin_family = AF_INET;
  if (inet_pton(AF_INET, text.substr(0, colon).c_str(), &v4.sin_addr) != 1) return wrong;
  v4.sin_port = htons(port);
  return stored(v4);
}

socklen_t endpoint_bytes(const sockaddr_storage& address) {
  return address.ss_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
}

bool is_loopback(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET6) {
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
  }
  return ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr) >> 24 == 127;
}

Result<Transports> choose_transports(const std::string& listen, const char* env_tls, const char* env_devices) {
  Transports chosen;
  chosen.tls = env_tls != nullptr && *env_tls != 0 ? env_tls : kUcxTransports;
  chosen.devices = env_devices != nullptr && *env_devices != 0 ? env_devices : kUcxDevices;
  if (listen.starts_with(kPrefix)) {
    const std::string_view wanted = std::string_view(listen).substr(kPrefix.size());
    const std::size_t at = wanted.find('@');
    chosen.tls = wanted.substr(0, at);
    if (at != std::string_view::npos) chosen.devices = wanted.substr(at + 1);
  }
  RETURN_IF_ERROR(check_list("transports", chosen.tls));
  RETURN_IF_ERROR(check_list("devices", chosen.devices));
  chosen.memory = allows(chosen.tls, {"posix", "sysv", "sm", "shm", "mm", "xpmem"});
  const std::vector<std::string_view> words = split(chosen.tls);
  const bool inside =
      chosen.tls.front() != '^' && std::all_of(words.begin(), words.end(), [](std::string_view word) {
        constexpr std::string_view kInside[] = {"posix", "sysv", "sm", "shm", "mm", "xpmem", "cma", "knem", "self"};
        return std::find(std::begin(kInside), std::end(kInside), word) != std::end(kInside);
      });
  chosen.network = !inside && chosen.devices != "lo";
  if (!allows(chosen.tls, {"tcp"})) {
    if (chosen.tls.front() == '^') {
      return invalid_argument("UCX's transports '{}' leave out tcp, over which connections are made", chosen.tls);
    }
    chosen.tls += ",tcp";
  }
  chosen.ip = chosen.network ? first_address(chosen.devices) : "127.0.0.1:0";
  return chosen;
}

}  // namespace millrace::ucx
