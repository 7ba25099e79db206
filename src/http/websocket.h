// WebSocket: a connection that carries messages of text both ways (RFC 6455), as a route sees it.
//
// A route with Route::websocket answers the handshake: it gives a handler, or the response that refuses. Messages come
// to the handler one at a time, in their sequence. What an answer writes while it is made goes through open_stream(),
// whose responder is one as any other: the engine's sinks need not know that it is no HTTP response.
//
// Thread safety: a WebSocket's functions from any thread. The handler's functions run on the io thread, and
// on_message() on the bodies thread where the message and weight() are over Limits::inline_body_bytes. on_drain() may
// run meanwhile; an on_close() that is due comes behind it, on the bodies thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <variant>

#include "http/exchange.h"
#include "http/message.h"

namespace millrace::http {

// Why one side closes (RFC 6455 7.4.1).
enum class CloseCode : uint16_t {
  kNormal = 1000,
  kStopping = 1001,
  kUnknownData = 1003,
  kTryAgainLater = 1013,
};

class WebSocket {
 public:
  virtual ~WebSocket() = default;

  // Queues one message. While the client has not taken what was queued this way (Limits::websocket_unread_bytes), no
  // further message of its own is read.
  virtual void send(std::string text) = 0;
  // What is queued goes out first.
  virtual void close(CloseCode code, std::string reason) = 0;
  // Of an answer in messages: each line that is written is one, and so are the lines of a response that is sent whole.
  // Several may be open; their messages come in the sequence in which they are written. `on_end`: once, on the io
  // thread, when the stream has ended, broken off or not, and its last line is queued; not where the connection is gone
  // before.
  virtual ResponderPtr open_stream(RequestLabel label, std::function<void()> on_end) = 0;
};

class WebSocketHandler {
 public:
  virtual ~WebSocketHandler() = default;

  // The handshake is done.
  virtual void on_open() = 0;
  virtual void on_message(std::string text) = 0;
  // Bytes beside the message's own that on_message() may go through. Any thread.
  virtual std::size_t weight() const { return 0; }
  // The server accepts no more connections: close when what runs is done. Once.
  virtual void on_drain() = 0;
  // The connection is gone, and the client of each open stream with it. Nothing follows.
  virtual void on_close() = 0;
};

// A handler, or why there is none. On the io thread, before the handshake.
using WebSocketAnswer = std::variant<std::shared_ptr<WebSocketHandler>, Response>;
using WebSocketOpener = std::function<WebSocketAnswer(const Request&, std::shared_ptr<WebSocket>)>;

}  // namespace millrace::http
