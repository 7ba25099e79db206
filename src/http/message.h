// What a handler sees of HTTP: the request, the response, headers, and who may call a route.
//
// Thread safety: values. A Request belongs to the handler that received it; the server keeps no reference to it.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace millrace::http {

struct Header {
  std::string name;
  std::string value;
};

// Header fields in order of arrival. Names compare without regard to ASCII case. Small (the server limits the count),
// so a lookup is a scan.
class Headers {
 public:
  Headers() = default;
  Headers(std::initializer_list<Header> fields) : fields_(fields) {}

  void add(std::string name, std::string value) { fields_.push_back({std::move(name), std::move(value)}); }
  // Replaces the first field of that name or adds one.
  void set(std::string_view name, std::string value);
  // The first value, or nullptr. The server has already refused duplicates of every field where they are dangerous
  // (Host, Content-Length, Transfer-Encoding, Authorization, Content-Type, Expect).
  const std::string* find(std::string_view name) const;
  int count(std::string_view name) const;
  std::size_t size() const { return fields_.size(); }
  auto begin() const { return fields_.begin(); }
  auto end() const { return fields_.end(); }

 private:
  std::vector<Header> fields_;
};

// ASCII case-insensitive equality, for header names and tokens.
bool equals_ignore_case(std::string_view a, std::string_view b);

// Who may call a route. kUser needs the API key when one is set. kAdmin needs the admin key when one is set, otherwise
// the API key. With no key at all it is served on the Unix socket only, or to every client where the options allow it:
// an address proves nothing about a client, since behind a proxy on the same host all come from loopback.
enum class Access : uint8_t { kPublic, kUser, kAdmin };

struct Request {
  uint64_t id = 0;         // unique inside this server; never chosen by a client
  std::string request_id;  // the client's x-request-id when well formed, else generated; a label, may repeat
  std::string method;      // "GET", "HEAD" (runs the GET handler; the server drops the body), "POST", ...
  std::string path;        // percent-decoded, starts with '/', no "." or ".." segment, no NUL
  std::string query;       // raw, without '?'; query_value() decodes
  std::string version;     // "1.1" or "1.0"
  Headers headers;
  std::string body;            // complete, de-chunked; at most the route's or the server's body limit
  std::string client_address;  // "127.0.0.1:51234", "[::1]:51234", "unix"
  // It came with a key of the server; or the server has none, and it came from this machine and through no proxy that
  // names itself (Gate::trusts).
  bool trusted = false;
  // The {name} parts of the pattern, decoded. A %2F inside a part becomes '/'.
  std::vector<std::pair<std::string, std::string>> params;

  // The value of pattern part `name`, or "" when the pattern has none.
  std::string_view param(std::string_view name) const;
  // The decoded value of query field `name` ('+' is a space), or false when absent.
  bool query_value(std::string_view name, std::string& out) const;
};

// What a request is called in a log.
struct RequestLabel {
  std::string method, path, request_id;
  std::string traceparent;  // the client's header, unchecked; "": none
};

struct Response {
  int status = 200;
  Headers headers;                                // further fields; CR, LF and NUL in values are replaced by '?'
  std::string content_type = "application/json";  // "" sends none
  std::string body;
  std::shared_ptr<void> counted;  // held until the body is sent, or the client is gone: what its bytes count against
};

// "OK", "Not Found", ...; "Unknown" for numbers without a name.
std::string_view reason_phrase(int status);

// Appends one server-sent event carrying `data` ("data: ...\n\n"). Line breaks inside become further data lines.
void append_sse_data(std::string& out, std::string_view data);

}  // namespace millrace::http
