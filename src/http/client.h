// A small blocking HTTP/1.1 client: what `millrace chat`, `millrace bench` and tests of the server need. Plain http://
// and Unix sockets only.
//
// Owner: its caller. Thread safety: one thread at a time, but for interrupt().
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>

#include "base/status.h"

namespace millrace::http {

struct Url {
  std::string host = "127.0.0.1";
  uint16_t port = 30000;
  std::string unix_socket;  // a path instead of both; "": none

  std::string text() const;  // "host:port" or "unix:/path", for messages
};

// "http://host:port" or "host:port", a trailing "/" or "/v1" is ignored; or "unix:/path". kInvalidArgument has
// what was seen.
Result<Url> parse_url(const std::string& text);

// As a part of a path or a query: all but letters, digits and "-._~/:" as %XX.
std::string escaped(std::string_view text);

struct ClientResponse {
  int status = 0;
  std::string body;  // empty when it was handed to on_data
};

class Client {
 public:
  Client(Url url, std::string api_key) : url_(std::move(url)), api_key_(std::move(api_key)) {}

  // With on_data, the body of a 200 is handed over as below.
  Result<ClientResponse> get(const std::string& path, const std::function<bool(std::string_view)>& on_data = {});
  // JSON in. With on_data, the body of a 200 is handed over chunk by chunk as it arrives; false from it ends the
  // request.
  Result<ClientResponse> post(const std::string& path, const std::string& json,
                              const std::function<bool(std::string_view)>& on_data = {});
  // The request in progress fails with kUnavailable, once its connection stands. From any thread.
  void interrupt();

 private:
  Result<ClientResponse> request(const std::string& method, const std::string& path, const std::string& json,
                                 const std::function<bool(std::string_view)>& on_data);
  // The same over a connected socket.
  template <typename Socket>
  Result<ClientResponse> exchange(Socket& socket, const std::string& method, const std::string& path,
                                  const std::string& json, const std::function<bool(std::string_view)>& on_data);

  const Url url_;
  const std::string api_key_;
  std::mutex mutex_;
  int socket_ = -1;  // of the request in progress, guarded by mutex_
};

// Splits a stream of server-sent events into their data, however it is cut. The names of events are skipped.
class SseReader {
 public:
  // Calls on_event for each complete event in `bytes` and what was kept before it. False when on_event returned false.
  bool push(std::string_view bytes, const std::function<bool(std::string_view)>& on_event);

 private:
  std::string kept_;
};

}  // namespace millrace::http
