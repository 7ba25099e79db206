#include "http/gate.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <fmt/core.h>

#include <algorithm>

#include "http/target.h"
#include "http/upgrade.h"

namespace millrace::http {
namespace {

// The token of "Bearer <token>", or "" when the field has another form.
std::string_view bearer_token(const std::string* field) {
  static constexpr std::string_view kScheme = "Bearer ";
  if (field == nullptr || field->size() <= kScheme.size()) return "";
  std::string_view text = *field;
  if (!equals_ignore_case(text.substr(0, kScheme.size()), kScheme)) return "";
  text.remove_prefix(kScheme.size());
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  return text;
}

std::string_view token_of(const RequestHead& head) {
  const std::string* authorization = head.headers.find("authorization");
  const std::string* key = head.headers.find("x-api-key");
  if (authorization != nullptr) return bearer_token(authorization);
  if (key != nullptr) return *key;
  for (std::string_view protocol : offered_protocols(head.headers)) {  // a page's WebSocket can set nothing else
    if (protocol.starts_with(kKeyProtocol)) return protocol.substr(kKeyProtocol.size());
  }
  return "";
}

// Whether a URL or an origin is of the page that this server itself serves: its authority is the Host that the browser
// used.
bool is_from_host(std::string_view url, const RequestHead& head) {
  const std::string* host = head.headers.find("host");
  const size_t scheme = url.find("://");
  if (host == nullptr || scheme == std::string_view::npos) return false;
  url.remove_prefix(scheme + 3);
  return equals_ignore_case(url.substr(0, url.find('/')), *host);
}

}  // namespace

Gate::Digest Gate::digest(std::string_view key) {
  Digest result;
  SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(), result.data());
  return result;
}

Gate::Gate(const ServerOptions& options, bool loopback_bound)
    : cors_origins_(options.cors_origins), allowed_hosts_(options.allowed_hosts), check_host_(loopback_bound) {
  admin_without_key_ = options.admin_without_key;
  if (!options.api_key.empty()) user_key_ = digest(options.api_key);
  if (!options.admin_api_key.empty()) admin_key_ = digest(options.admin_api_key);
  any_origin_ = std::find(cors_origins_.begin(), cors_origins_.end(), "*") != cors_origins_.end();
  allowed_hosts_.push_back(options.host);
  for (std::string& host : allowed_hosts_) {
    std::transform(host.begin(), host.end(), host.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; });
  }
}

HttpError Gate::check_host(const RequestHead& head) const {
  if (!check_host_ || head.host.empty() || is_loopback_name(head.host)) return {};
  if (std::find(allowed_hosts_.begin(), allowed_hosts_.end(), head.host) != allowed_hosts_.end()) return {};
  return {421, fmt::format("the Host '{}' is not served on a loopback address; wanted localhost, or a name that the "
                           "server was started with: --allowed-host {}",
                           head.host, head.host)};
}

HttpError Gate::check_access(const RequestHead& head, const Route* route, bool over_unix_socket) const {
  Access access = route == nullptr ? Access::kUser : route->access;
  if (access == Access::kPublic) return {};
  if (!user_key_ && !admin_key_) {
    if (access == Access::kAdmin && !over_unix_socket && !admin_without_key_) {
      return {403,
              "this route is for administrators, and the server has no admin key. Start it with --admin-api-key-file "
              "and send the key, or start it with --uds and call the route on that socket, or allow it to every client "
              "with --admin-without-key"};
    }
    return {};
  }
  const std::string_view token = token_of(head);
  const auto [is_user, is_admin] = keys_of(token);
  if (is_admin) return {};
  if (access == Access::kUser && (is_user || !user_key_)) return {};
  if (access == Access::kAdmin && is_user) {
    if (!admin_key_) return {};
    return {403, "this route needs the admin key"};
  }
  if (token.empty())
    return {401, "missing API key; wanted the header 'Authorization: Bearer <key>' or 'x-api-key: <key>'"};
  return {401, "incorrect API key"};
}

// Both compared always, without a shortcut.
std::pair<bool, bool> Gate::keys_of(std::string_view token) const {
  const Digest given = digest(token);
  const bool is_user = user_key_ && CRYPTO_memcmp(given.data(), user_key_->data(), given.size()) == 0;
  const bool is_admin = admin_key_ && CRYPTO_memcmp(given.data(), admin_key_->data(), given.size()) == 0;
  return {is_user, is_admin};
}

bool Gate::trusts(const RequestHead& head, std::string_view client_address) const {
  const auto [is_user, is_admin] = keys_of(token_of(head));
  if (is_user || is_admin) return true;
  if (user_key_) return false;
  for (const char* name : {"x-forwarded-for", "forwarded", "via", "x-real-ip"}) {
    if (head.headers.find(name) != nullptr) return false;
  }
  if (client_address == "unix") return true;
  // A name of elsewhere may lead here too (DNS rebinding).
  return is_loopback_name(head.host) && (client_address.starts_with("127.") || client_address.starts_with("[::1]"));
}

std::string Gate::cors_origin(const RequestHead& head) const {
  const std::string* origin = head.headers.find("origin");
  if (origin == nullptr) return "";
  if (any_origin_) return "*";
  bool known = std::find(cors_origins_.begin(), cors_origins_.end(), *origin) != cors_origins_.end();
  return known ? *origin : "";
}

HttpError Gate::check_origin(const RequestHead& head, const Route& route) const {
  const bool safe = head.method == "GET" || head.method == "HEAD" || head.method == "OPTIONS";
  if (safe && route.access != Access::kAdmin && !route.same_origin) return {};
  const HttpError refused{403, "cross-origin requests are off for this origin; allow it in the CORS list"};
  if (const std::string* origin = head.headers.find("origin")) {
    return !cors_origin(head).empty() || is_from_host(*origin, head) ? HttpError{} : refused;
  }
  if (!safe) return {};  // browsers send Origin with each of these
  // Images, frames and links of a page are fetched without Origin. Sec-Fetch-Site is absent on plain HTTP to other
  // addresses than loopback ones, where Referer remains.
  if (const std::string* site = head.headers.find("sec-fetch-site")) {
    return *site == "same-origin" || *site == "none" ? HttpError{} : refused;
  }
  const std::string* referer = head.headers.find("referer");
  return referer == nullptr || is_from_host(*referer, head) ? HttpError{} : refused;
}

bool Gate::is_preflight(const RequestHead& head) {
  return head.method == "OPTIONS" && head.headers.find("origin") != nullptr &&
         head.headers.find("access-control-request-method") != nullptr;
}

}  // namespace millrace::http
