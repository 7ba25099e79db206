// Who may pass: API keys, cross-origin rules and the Host check. Decisions only; no sockets.
//
// Everything is denied by default: a route without Access::kPublic, and any path that is no route at all, needs the key
// when one is set. Keys compare as SHA-256 digests in constant time, so that timing reveals nothing about a prefix.
//
// Owner: the server's Context. Thread safety: immutable after construction.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "http/request_head.h"
#include "http/server.h"

namespace millrace::http {

class Gate {
 public:
  // `loopback_bound`: the server listens on a loopback address, so only loopback names (and allowed_hosts, and the host
  // of its own options) are accepted in Host.
  Gate(const ServerOptions& options, bool loopback_bound);

  // 421 for a Host that is not ours.
  HttpError check_host(const RequestHead& head) const;
  // 401 without a valid key; 403 for the user key on an admin route, and for an admin route without any key that does
  // not come over the Unix socket. `route` is nullptr when there is none.
  HttpError check_access(const RequestHead& head, const Route* route, bool over_unix_socket) const;
  // 403 for a state-changing request that a browser sends for a page of another origin: forms and scripts need no CORS
  // to do harm. On admin routes a GET is one too: an image of such a page could flush the cache; and on
  // those that ask for it (Route::same_origin).
  HttpError check_origin(const RequestHead& head, const Route& route) const;

  // Whether the client may see what concerns others, such as how their prompts begin: it has a key; or the server has
  // none for users, and the client is on this machine. One that a proxy has forwarded is not, as far as the proxy names
  // itself (X-Forwarded-For, Forwarded, Via, X-Real-IP).
  bool trusts(const RequestHead& head, std::string_view client_address) const;

  // The value for Access-Control-Allow-Origin, or "" when the request has no Origin or a foreign one.
  std::string cors_origin(const RequestHead& head) const;
  static bool is_preflight(const RequestHead& head);

 private:
  using Digest = std::array<uint8_t, 32>;
  static Digest digest(std::string_view key);
  // Of the key that the request came with: {the users', the administrators'}.
  std::pair<bool, bool> keys_of(std::string_view token) const;

  std::optional<Digest> user_key_;
  std::optional<Digest> admin_key_;
  std::vector<std::string> cors_origins_;
  std::vector<std::string> allowed_hosts_;
  bool any_origin_ = false;
  bool check_host_ = false;
  bool admin_without_key_ = false;
};

}  // namespace millrace::http
