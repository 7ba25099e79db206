// WebSocketLink: the WebSocket of one connection, over Boost.Beast. Internal to http/.
//
// Two ways lead into its queue of messages: send(), and streams, each an Exchange whose other end is here instead of in
// the Session. What a stream has written counts as unsent until the socket has taken it, so the limits of slow readers
// and the flow control of answers are those of every other response.
//
// Owner: the Session, whose socket it uses. Thread safety: send(), close() and open_stream() from any thread; the rest
// on the io thread.
//
// Invariants: one read and one write are under way at most; messages leave in the sequence in which they were queued;
// no callback of the handler comes behind on_close().
#pragma once

// clang-format off
#include <boost/asio/generic/stream_protocol.hpp>
// clang-format on

#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "http/exchange.h"
#include "http/request_head.h"
#include "http/websocket.h"

namespace millrace::http {

struct Context;

class WebSocketLink : public WebSocket, public std::enable_shared_from_this<WebSocketLink> {
 public:
  using Clock = std::chrono::steady_clock;

  class Stream;  // Beast's, over the socket of the session

  // `owner` keeps the socket alive for the operations that are under way. `on_change`: done() or the idle deadline may
  // have changed.
  WebSocketLink(Context& context, std::unique_ptr<Stream> stream, std::shared_ptr<void> owner,
                std::function<void()> on_change);
  ~WebSocketLink() override;

  void start(const RequestHead& head, const std::string& request_id, const std::string& protocol,
             std::shared_ptr<WebSocketHandler> handler);
  bool done() const { return done_; }
  // When it is closed for want of messages; max: not now.
  Clock::time_point idle_deadline() const;
  void close_idle();
  void drain();
  // The connection is gone or given up.
  void finish();

  void send(std::string text) override;
  void close(CloseCode code, std::string reason) override;
  ResponderPtr open_stream(RequestLabel label, std::function<void()> on_end) override;

 private:
  struct Message {
    std::string text;
    std::shared_ptr<Exchange> stream;  // null: of send()
    std::size_t counted = 0;           // of the stream's unsent bytes
  };

  void on_accepted();
  void read_next();
  void on_read();
  void handle(std::string text);
  bool begin_aside();
  bool end_aside();
  void read_again();
  void take_stream(const std::shared_ptr<Exchange>& answer);
  void end_stream(const std::shared_ptr<Exchange>& answer);
  void pump();
  void on_written();
  void poke();

  Context& context_;
  const std::shared_ptr<Hub> hub_;
  const std::unique_ptr<Stream> stream_;
  std::shared_ptr<void> owner_;
  std::function<void()> on_change_;
  std::shared_ptr<WebSocketHandler> handler_;
  bool open_ = false, done_ = false, draining_ = false, closing_ = false;
  bool reading_ = false, writing_ = false;
  Clock::time_point last_message_ = Clock::now();
  Message current_;  // that is written

  mutable std::mutex mutex_;  // guards what follows
  std::deque<Message> queue_;
  std::size_t unread_ = 0;  // bytes of send() that the socket has not taken
  struct OpenStream {
    std::shared_ptr<Exchange> answer;
    std::function<void()> on_end;
  };
  std::vector<OpenStream> streams_;
  std::optional<std::pair<CloseCode, std::string>> close_wanted_;
  bool gone_ = false;
  bool handling_aside_ = false;  // the bodies thread is in on_message()
};

// Of the session's socket.
std::shared_ptr<WebSocketLink> make_websocket_link(Context& context,
                                                   boost::asio::generic::stream_protocol::socket& socket,
                                                   std::shared_ptr<void> owner, std::function<void()> on_change);

}  // namespace millrace::http
