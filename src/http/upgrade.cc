#include "http/upgrade.h"

#include <fmt/core.h>

namespace millrace::http {
namespace {

constexpr std::string_view kVersion = "13";
constexpr std::size_t kMaxShownBytes = 100;  // of what a client sent, in an error

std::vector<std::string_view> tokens_of(const Headers& headers, std::string_view name) {
  std::vector<std::string_view> out;
  for (const Header& field : headers) {
    if (!equals_ignore_case(field.name, name)) continue;
    std::string_view rest = field.value;
    while (!rest.empty()) {
      std::string_view token = rest.substr(0, rest.find(','));
      rest.remove_prefix(std::min(rest.size(), token.size() + 1));
      while (!token.empty() && (token.front() == ' ' || token.front() == '\t')) token.remove_prefix(1);
      while (!token.empty() && (token.back() == ' ' || token.back() == '\t')) token.remove_suffix(1);
      if (!token.empty()) out.push_back(token);
    }
  }
  return out;
}

bool has_token(const Headers& headers, std::string_view name, std::string_view wanted) {
  for (std::string_view token : tokens_of(headers, name)) {
    if (equals_ignore_case(token, wanted)) return true;
  }
  return false;
}

}  // namespace

std::vector<std::string_view> offered_protocols(const Headers& headers) {
  return tokens_of(headers, "sec-websocket-protocol");
}

HttpError check_upgrade(const RequestHead& head) {
  if (!has_token(head.headers, "upgrade", "websocket") || !has_token(head.headers, "connection", "upgrade")) {
    return {426, "this route is a WebSocket; wanted the headers 'Connection: Upgrade' and 'Upgrade: websocket'"};
  }
  if (head.method != "GET") return {400, fmt::format("a WebSocket by {}; wanted GET", head.method)};
  if (head.minor_version == 0) return {400, "a WebSocket over HTTP/1.0; wanted HTTP/1.1"};
  if (head.has_body()) return {400, "a WebSocket's request with a body; wanted none"};
  const std::string* version = head.headers.find("sec-websocket-version");
  if (version == nullptr || *version != kVersion) {
    return {426, fmt::format("the header Sec-WebSocket-Version is '{}'; wanted {}",
                             version ? version->substr(0, kMaxShownBytes) : "", kVersion)};
  }
  const std::string* key = head.headers.find("sec-websocket-key");
  constexpr std::size_t kKeyBytes = 24;  // 16 bytes as base64
  if (key == nullptr || key->size() != kKeyBytes || head.headers.count("sec-websocket-key") != 1) {
    return {400, "the header Sec-WebSocket-Key is missing or none; wanted 16 bytes as base64"};
  }
  return {};
}

}  // namespace millrace::http
