#include "relay/ucx/transports.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

#include "relay/tcp/address.h"
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

// It goes into UCX's configuration as it is: only what stands in names of transports and devices, and '^' for "all
// but".
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
  // As UCX_TLS is read: "^a,b" is all but a and b. check_list() has refused the empty list.
  const bool negative = tls.front() == '^';
  if (negative) tls.remove_prefix(1);
  bool named = false;
  for (const std::string_view word : split(tls)) {
    if (word == "all") return !negative;
    named = named || std::find(names.begin(), names.end(), word) != names.end();
  }
  return named != negative;
}

// Of an interface, with any port: getifaddrs() gives 0.
std::string text_of(const sockaddr* address) {
  tcp::SocketAddress copy;
  copy.size = address->sa_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  std::memcpy(&copy.storage, address, copy.size);
  return copy.to_string();
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
  // UCX makes its connections to a listener over sockets; without tcp no reader would reach a writer.
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
