// An HTTP/1.1 server with server-sent events. It knows routes, limits and sockets; what the bytes mean is the handlers'
// job.
//
// The io thread owns every socket and runs every callback. It runs the handlers too, except those of bodies over
// Limits::inline_body_bytes: parsing megabytes would hold up all streams, so these run on the bodies thread, one at a
// time in order of arrival. So a handler may run while one other handler does, and a handler on the io thread must not
// block. It keeps the responder and answers now or later, from any thread. Per connection, requests run one at a time
// and in order (pipelined ones wait), so responses never overtake each other.
//
//   Server server(options);
//   server.add_route({.method = "GET", .pattern = "/health", .access = Access::kPublic, .handler = [](auto, auto
//   responder) {
//                       responder->send({.body = "{}"});
//                     }});
//   RETURN_IF_ERROR(server.start());
//   ...
//   server.drain(std::chrono::seconds(30));
//   server.stop();
//
// A client that goes away. The socket is watched while a response is pending or streaming. FIN counts as gone: a client
// that closes its socket and one that only shuts down its sending side look the same, and the first is what happens in
// practice. A response already handed over (send() or end() returned) is still written to a half-closed client.
//
// Invariants: a request ends exactly once (send, end, abort, or the client gone); a responder dropped without an answer
// answers 500; nothing a client sends grows memory past the limits below.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "http/exchange.h"
#include "http/limits.h"
#include "http/message.h"
#include "http/websocket.h"

namespace millrace::http {

using RequestPtr = std::shared_ptr<Request>;
// Runs on the io thread, or on the bodies thread where the body is over Limits::inline_body_bytes. Not at all where the
// client has left or the server was stopped while a large body waited. An exception that escapes is logged and becomes
// a 500.
using Handler = std::function<void(RequestPtr, ResponderPtr)>;

struct Route {
  std::string method;   // "GET" (also answers HEAD), "POST", "DELETE", ...
  std::string pattern;  // "/v1/models", "/v1/models/{id}"; "{id...}" as the last part takes the rest of the path
  Access access = Access::kUser;
  bool same_origin = false;        // pages of other origins get a 403 for a GET too, as on admin routes
  bool require_json = true;        // a non-empty body must be application/json, else 415
  std::size_t max_body_bytes = 0;  // 0: the server's limit
  // Renders the errors that the server itself answers on this route; unset: ServerOptions::render_error.
  std::function<Response(int status, std::string_view message, std::string_view request_id)> render_error = nullptr;
  Handler handler = nullptr;
  // Instead of a handler: the route is a WebSocket, and speaks this subprotocol where the client offers it; "": none.
  // The method is GET.
  WebSocketOpener websocket = nullptr;
  std::string websocket_protocol = "";
};

struct ServerOptions {
  std::string host =
      "127.0.0.1";      // IPv4 or IPv6 literal ("::1" or "[::1]"), or a name to resolve; the first address is bound
  uint16_t port = 0;    // 0: the kernel chooses; see Server::port()
  std::string api_key;  // "": no key needed
  std::string admin_api_key;              // "": admin routes take api_key
  bool admin_without_key = false;         // admin routes are open to every client where no key is set
  std::string unix_socket;                // a path to listen on too, mode 0600, the same routes; "": none
  bool tcp = true;                        // false: the Unix socket alone
  std::vector<std::string> cors_origins;  // exact origins ("https://ui.example") or "*"; default none
  // Further names accepted in Host when bound to a loopback address, where only loopback names are accepted otherwise
  // (421): a web page must not reach the server through DNS rebinding.
  std::vector<std::string> allowed_hosts;
  std::string server_name = "millrace";  // the Server header
  Limits limits;
  // Renders the body of errors that the server itself answers (400, 401, 403, 404, 405, 408, 413, 414, 415, 417, 421,
  // 431, 500, 501, 505). Default: {"error":{"message":...,"code":status}}. The content type is application/json.
  std::function<std::string(int status, std::string_view message)> render_error;
};

// Counters since start. Plain numbers for a metrics page.
struct ServerStats {
  uint64_t connections_accepted = 0;
  uint64_t connections_open = 0;
  uint64_t requests = 0;         // heads parsed, refused ones included
  uint64_t requests_active = 0;  // dispatched to a handler and not yet ended
  uint64_t responses_2xx = 0;
  uint64_t responses_4xx = 0;
  uint64_t responses_5xx = 0;
  uint64_t disconnects = 0;    // clients that left before their response ended
  uint64_t slow_readers = 0;   // of those, aborted for unsent bytes or write_stall_timeout
  uint64_t accept_errors = 0;  // out of file descriptors and the like
};

class Server {
 public:
  explicit Server(ServerOptions options);
  ~Server();  // stop()
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Before start() only. CHECK-fails on a malformed pattern or a duplicate of (method, pattern).
  void add_route(Route route);
  // Those that were added, in sequence. Valid until the next one is.
  std::vector<const Route*> routes() const;

  // Binds, listens and starts the threads. kUnavailable when the address or the Unix socket is in use,
  // kInvalidArgument when it cannot be resolved or bound; the message names address and port, or the path.
  Status start();
  // The bound port; valid after start(). 0 without TCP.
  uint16_t port() const;
  // "http://127.0.0.1:30000", or "unix:/path" without TCP.
  std::string url() const;
  // Only programs of this host reach it; valid after start().
  bool is_local() const;

  // Closes the listening socket and idle connections; busy ones close after their response. Any thread, idempotent.
  void stop_accepting();
  // stop_accepting(), then waits until every request has ended and been written, or `timeout` passed. True when all
  // have. Not from a handler or a callback.
  bool drain(std::chrono::milliseconds timeout);
  // Waits for the handler that the bodies thread runs, aborts what is left (on_disconnect fires), joins both threads.
  // No handler runs after it. Responders that outlive it do nothing. Idempotent. Not from a handler or a callback.
  void stop();

  // Of an answer that no client waits for: what it is given goes nowhere. drain() waits for its end, and stop() fires
  // its on_disconnect.
  ResponderPtr detached_responder(RequestLabel label);
  // Runs `function` on the bodies thread, after what waits there: work that would hold up the io thread. Dropped after
  // stop().
  void post_aside(std::function<void()> function);
  // Runs `function` on the io thread soon. Dropped after stop().
  void post(std::function<void()> function);
  // The same after `delay`. Dropped after stop().
  void post_after(std::chrono::milliseconds delay, std::function<void()> function);

  ServerStats stats() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace::http
