// Connection: requests to one hub, and to where it redirects them, with libcurl.
//
// Redirects are followed here, not by libcurl: the token goes to the hub's own scheme, host and port alone, https never
// becomes http, and the fields of the first answers (X-Linked-Etag, X-Repo-Commit) are kept. A transfer without a byte
// for kStallSeconds is a broken one. Proxies are those of the environment.
//
// Owner: the thread that uses it. Thread safety: one thread; `cancelled` is asked on it at least once a second.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "base/status.h"
#include "http/curl_handle.h"
#include "hub/settings.h"

namespace millrace::hub {

inline constexpr int kMaxRedirects = 5;
inline constexpr long kStallSeconds = 60;
inline constexpr long kConnectTimeoutMs = 15'000;
inline constexpr std::size_t kMaxHeadBytes = 256 << 10;  // of all answers to one request
inline constexpr std::size_t kMaxErrorBytes = 4 << 10;   // of an error's body that is kept

struct HubRequest {
  std::string url;
  bool head = false;
  uint64_t first = 0;            // byte from which the file is wanted
  std::optional<uint64_t> last;  // and up to which, inclusive; nullopt: the end
};

struct HubAnswer {
  long status = 0;
  // Names in lower case. Of the last answer, and x-linked-* and x-repo-* of redirects before it; the first counts.
  std::map<std::string, std::string> fields;
  std::string content_range;              // of the last answer
  std::optional<int64_t> content_length;  // of the last answer
  int64_t retry_after_s = 0;

  std::string field(const std::string& name) const;
};

// Why an answer that is neither 200 nor 206 is none. `what`: what was asked for, in the message.
Status status_of(const HubAnswer& answer, const std::string& what);
// Whether another attempt may succeed: 408, 429 and 5xx.
bool is_passing(const HubAnswer& answer);

class Connection {
 public:
  // Before the first byte of a 200 or 206; an error ends the transfer and is returned.
  using OnHead = std::function<Status(const HubAnswer&)>;
  using OnBody = std::function<Status(std::span<const std::byte>)>;

  static Result<Connection> open(const HubSettings& settings, std::function<bool()> cancelled);

  // An answer of any status; the body of a 200 or 206 goes to on_body. kUnavailable: no connection, or it broke off,
  // and another attempt may succeed; kInvalidArgument: it would not; kCancelled.
  Result<HubAnswer> perform(const HubRequest& request, const OnHead& on_head, const OnBody& on_body);

  // A part of a URL's path, with escapes; "/" becomes %2F.
  std::string escape(const std::string& text) const;

 private:
  struct Hop;
  Connection(const HubSettings& settings, std::function<bool()> cancelled, http::CurlHandle curl);
  Result<HubAnswer> perform_hop(const HubRequest& request, const std::string& url, Hop& hop);

  std::string endpoint_, token_;
  std::function<bool()> cancelled_;
  http::CurlHandle curl_;
};

}  // namespace millrace::hub
