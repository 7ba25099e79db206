#include "control/endpoint.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <charconv>
#include <memory>

namespace millrace {
namespace {

constexpr std::string_view kIpc = "ipc://";
constexpr std::string_view kTcp = "tcp://";
constexpr std::string_view kInproc = "inproc://";
constexpr std::size_t kMaxLabelOfName = 63;
constexpr std::size_t kQuotedBytes = 160;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_alnum(char c) { return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

Status wrong(std::string_view text, std::string_view problem, std::string_view wanted) {
  return invalid_argument("endpoint '{}': {}; wanted {}", quoted_endpoint(text), problem, wanted);
}

// inet_pton() takes four decimal numbers alone, not the short and hexadecimal forms that inet_aton() and resolvers
// know.
bool is_ipv4(const std::string& host) {
  in_addr address;
  return ::inet_pton(AF_INET, host.c_str(), &address) == 1;
}

// A DNS name: labels of letters, digits and inner '-', and not a broken IPv4 address.
bool is_name(std::string_view host) {
  if (host.empty() || host.size() > kMaxHostBytes) return false;
  // "127.0.0.300" would pass as labels of digits, and a resolver may take it for an address.
  if (host.find_first_not_of("0123456789.") == std::string_view::npos) return false;
  std::size_t label = 0;
  for (std::size_t i = 0; i <= host.size(); ++i) {
    if (i == host.size() || host[i] == '.') {
      // RFC 1123, 2.1: a label neither begins nor ends with '-'. At i the label is [i - label, i), so i is at least 1
      // here.
      if (label == 0 || label > kMaxLabelOfName || host[i - label] == '-' || host[i - 1] == '-') return false;
      label = 0;
    } else if (is_alnum(host[i]) || host[i] == '-') {
      ++label;
    } else {
      return false;
    }
  }
  return true;
}

Result<Endpoint> parse_ipc(std::string_view text) {
  const std::string_view path = text.substr(kIpc.size());
  // ZeroMQ would take "@name" for the abstract namespace, which has no permissions, and "*" for a name of its choice.
  if (path.empty() || path[0] != '/') return wrong(text, "the path is not absolute", "ipc:///PATH");
  if (path.size() > kMaxIpcPathBytes) {
    return wrong(text, fmt::format("the path has {} bytes", path.size()),
                 fmt::format("at most {}, the system's limit", kMaxIpcPathBytes));
  }
  // The path stands in messages and logs, and in the processes' command lines.
  const bool control = std::any_of(path.begin(), path.end(), [](char c) { return static_cast<unsigned char>(c) < 32; });
  if (control) return wrong(text, "the path has a control character", "ipc:///PATH");
  return Endpoint{.transport = Transport::kIpc, .name = std::string(path)};
}

Result<Endpoint> parse_tcp(std::string_view text) {
  constexpr std::string_view kWanted = "tcp://HOST:PORT with an IPv4 address, an IPv6 address in brackets or a name";
  const std::string_view rest = text.substr(kTcp.size());
  // The last one: those before it belong to an IPv6 address, which so needs its brackets.
  const std::size_t colon = rest.rfind(':');
  if (colon == std::string_view::npos) return wrong(text, "it has no port", kWanted);
  const std::string_view port_text = rest.substr(colon + 1);
  uint32_t port = 0;
  const char* end = port_text.data() + port_text.size();
  // Digits alone: from_chars() takes no sign and no space. At most five of them, so that "00000080" is refused as well.
  const auto [stop, code] = std::from_chars(port_text.data(), end, port);
  if (port_text.empty() || port_text.size() > 5 || code != std::errc() || stop != end || port > 65535) {
    return wrong(text, "its port is no number up to 65535", "tcp://HOST:PORT with a port from 0 to 65535");
  }
  Endpoint out{.transport = Transport::kTcp, .name = std::string(rest.substr(0, colon)), .port = uint16_t(port)};
  if (out.name.size() >= 2 && out.name.front() == '[' && out.name.back() == ']') {
    in6_addr address;
    char canonical[INET6_ADDRSTRLEN];
    const std::string inner = out.name.substr(1, out.name.size() - 2);
    if (inner.find('\0') != std::string::npos || ::inet_pton(AF_INET6, inner.c_str(), &address) != 1) {
      return wrong(text, "what is in the brackets is no IPv6 address", kWanted);
    }
    // In the one form of RFC 5952, so that equal addresses are equal endpoints: local() and check_reachable() compare
    // text.
    out.name = ::inet_ntop(AF_INET6, &address, canonical, sizeof canonical);
    out.ipv6 = true;
    return out;
  }
  // A NUL would end the name for inet_pton() and for the library, and the rest would go unchecked.
  if (out.name != "*" && !is_name(out.name) && (out.name.find('\0') != std::string::npos || !is_ipv4(out.name))) {
    return wrong(text, "its host is no address and no name", kWanted);
  }
  return out;
}

Result<Endpoint> parse_inproc(std::string_view text) {
  const std::string_view name = text.substr(kInproc.size());
  const auto allowed = [](char c) { return is_alnum(c) || c == '-' || c == '_' || c == '.' || c == '/'; };
  if (name.empty() || name.size() > kMaxInprocNameBytes || !std::all_of(name.begin(), name.end(), allowed)) {
    return wrong(text, fmt::format("its name has {} bytes", name.size()),
                 fmt::format("inproc://NAME with 1 to {} letters, digits, '-', '_', '.' or '/'", kMaxInprocNameBytes));
  }
  return Endpoint{.transport = Transport::kInproc, .name = std::string(name)};
}

}  // namespace

// What a peer or a configuration has sent goes into one line of a log: neither control characters nor kilobytes of it.
std::string quoted_endpoint(std::string_view text) {
  std::string out(text.substr(0, kQuotedBytes));
  for (char& c : out) {
    if (c < 32 || c > 126) c = '?';
  }
  if (text.size() > kQuotedBytes) out += "...";
  return out;
}

Result<Endpoint> parse_endpoint(std::string_view text) {
  if (text.size() > kMaxEndpointBytes) {
    return wrong(text, fmt::format("it has {} bytes", text.size()), fmt::format("at most {}", kMaxEndpointBytes));
  }
  if (text.starts_with(kIpc)) return parse_ipc(text);
  if (text.starts_with(kTcp)) return parse_tcp(text);
  if (text.starts_with(kInproc)) return parse_inproc(text);
  return wrong(text, "its transport is unknown", "ipc:///PATH, tcp://HOST:PORT or inproc://NAME");
}

std::string Endpoint::to_string() const {
  if (transport == Transport::kIpc) return fmt::format("{}{}", kIpc, name);
  if (transport == Transport::kInproc) return fmt::format("{}{}", kInproc, name);
  return ipv6 ? fmt::format("{}[{}]:{}", kTcp, name, port) : fmt::format("{}{}:{}", kTcp, name, port);
}

// What is local needs no key, so only what certainly is: the loopback block of RFC 1122, ::1, and "localhost", which is
// never looked up.
bool Endpoint::local() const {
  if (transport != Transport::kTcp || name == "localhost") return true;
  if (ipv6) return name == "::1";
  return name.starts_with("127.") && is_ipv4(name);
}

Result<std::string> address_to_connect(const Endpoint& endpoint) {
  if (endpoint.transport != Transport::kTcp) return endpoint.to_string();
  if (endpoint.port == 0)
    return wrong(endpoint.to_string(), "port 0 cannot be connected to", "the port that was bound");
  if (endpoint.name == "*") return wrong(endpoint.to_string(), "'*' cannot be connected to", "an address or a name");
  if (endpoint.name == "localhost") return fmt::format("{}127.0.0.1:{}", kTcp, endpoint.port);
  return endpoint.to_string();
}

Status check_reachable(std::string_view text) {
  constexpr std::string_view kWanted = "tcp://ADDRESS:PORT with one address that other hosts reach";
  ASSIGN_OR_RETURN(const Endpoint where, parse_endpoint(text));
  if (where.transport != Transport::kTcp) return wrong(text, "other hosts cannot come there", kWanted);
  // All spellings: parse_tcp() has made the IPv6 ones canonical.
  for (const std::string_view all : {"*", "0.0.0.0", "::", "::ffff:0.0.0.0"}) {
    if (where.name == all) return wrong(text, fmt::format("{} stands for every address of a host", all), kWanted);
  }
  if (where.port == 65535) return wrong(text, "the port after it is used too", "a port up to 65534");
  return address_to_connect(where).status();
}

Result<std::string> address_to_bind(const Endpoint& endpoint) {
  if (endpoint.transport != Transport::kTcp || endpoint.ipv6 || endpoint.name == "*" || is_ipv4(endpoint.name)) {
    return endpoint.to_string();
  }
  if (endpoint.name == "localhost") return fmt::format("{}127.0.0.1:{}", kTcp, endpoint.port);
  // The library binds numeric addresses and interfaces; a name would be taken for an interface.
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int code = ::getaddrinfo(endpoint.name.c_str(), nullptr, &hints, &found);
  // The first address only: a name with several has one endpoint, and its peers look the name up themselves.
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> guard(found, &::freeaddrinfo);
  char host[NI_MAXHOST];
  if (code != 0 || found == nullptr ||
      ::getnameinfo(found->ai_addr, found->ai_addrlen, host, sizeof host, nullptr, 0, NI_NUMERICHOST) != 0) {
    return wrong(endpoint.to_string(), "its name is not known here", "an address of this machine");
  }
  return found->ai_family == AF_INET6 ? fmt::format("{}[{}]:{}", kTcp, host, endpoint.port)
                                      : fmt::format("{}{}:{}", kTcp, host, endpoint.port);
}

}  // namespace millrace
