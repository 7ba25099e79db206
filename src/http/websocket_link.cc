#include "http/websocket_link.h"

#include "http/session.h"

// clang-format off
#include <boost/beast/core/buffers_to_string.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/websocket/stream.hpp>
// clang-format on

#include <algorithm>

#include "base/log.h"

namespace millrace::http {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
using boost::system::error_code;

constexpr std::size_t kMaxReasonBytes = 120;  // of a close: a control frame has 125 bytes, two of them its code

beast::websocket::close_reason reason_of(CloseCode code, const std::string& text) {
  return {static_cast<beast::websocket::close_code>(code),
          beast::string_view(text.data(), std::min(text.size(), kMaxReasonBytes))};
}

// What a handler throws ends nothing but its message.
template <typename Call>
void guarded(Call call) {
  try {
    call();
  } catch (const std::exception& problem) {
    LOG_ERROR("a WebSocket's handler failed: {}", problem.what());
  }
}

}  // namespace

class WebSocketLink::Stream {
 public:
  explicit Stream(Session::Socket& socket) : ws(socket) {}

  // By reference: the socket stays the session's, which closes it. `false`: no compression of messages.
  beast::websocket::stream<Session::Socket&, false> ws;
  beast::http::request<beast::http::empty_body> request;
  beast::flat_buffer buffer;
};

WebSocketLink::WebSocketLink(Context& context, std::unique_ptr<Stream> stream, std::shared_ptr<void> owner,
                             std::function<void()> on_change)
    : context_(context),
      hub_(context.hub),
      stream_(std::move(stream)),
      owner_(std::move(owner)),
      on_change_(std::move(on_change)) {}

WebSocketLink::~WebSocketLink() = default;

std::shared_ptr<WebSocketLink> make_websocket_link(Context& context, Session::Socket& socket,
                                                   std::shared_ptr<void> owner, std::function<void()> on_change) {
  return std::make_shared<WebSocketLink>(context, std::make_unique<WebSocketLink::Stream>(socket), std::move(owner),
                                         std::move(on_change));
}

void WebSocketLink::start(const RequestHead& head, const std::string& request_id, const std::string& protocol,
                          std::shared_ptr<WebSocketHandler> handler) {
  handler_ = std::move(handler);
  const Limits& limits = context_.options.limits;
  auto& request = stream_->request;
  request.method(beast::http::verb::get);
  request.target("/");
  request.version(11);
  // The head was read and checked by this server; Beast gets it again for its part of the handshake, the key's answer.
  for (const Header& field : head.headers) request.insert(field.name, field.value);
  auto& ws = stream_->ws;
  ws.read_message_max(limits.websocket_message_bytes);
  ws.auto_fragment(false);  // a message is in memory anyway
  beast::websocket::stream_base::timeout timeouts{};
  timeouts.handshake_timeout = limits.header_timeout;
  timeouts.idle_timeout = limits.write_stall_timeout;  // of a peer that answers no ping
  timeouts.keep_alive_pings = true;
  ws.set_option(timeouts);
  ws.set_option(beast::websocket::stream_base::decorator(
      [server = context_.options.server_name, request_id, protocol](beast::websocket::response_type& response) {
        response.set(beast::http::field::server, server);
        response.set("x-request-id", request_id);
        if (!protocol.empty()) response.set(beast::http::field::sec_websocket_protocol, protocol);
      }));
  // `request` lives in stream_, since it is read until the handshake is done.
  ws.async_accept(request, [self = shared_from_this()](error_code ec) { ec ? self->finish() : self->on_accepted(); });
}

void WebSocketLink::on_accepted() {
  if (done_) return;
  open_ = true;
  last_message_ = Clock::now();
  stream_->ws.text(true);
  guarded([&] { handler_->on_open(); });
  if (context_.draining) drain();
  read_next();
  pump();
  on_change_();
}

void WebSocketLink::read_next() {
  if (!open_ || done_ || closing_ || reading_) return;
  {
    std::lock_guard lock(mutex_);
    // A client that asks and does not read: on_written() comes back here when it has.
    if (unread_ > context_.options.limits.websocket_unread_bytes) return;
  }
  reading_ = true;
  stream_->ws.async_read(stream_->buffer, [self = shared_from_this()](error_code ec, std::size_t) {
    // finish() has released the handler. Every callback of Beast begins with this check.
    if (self->done_) return;
    ec ? self->finish() : self->on_read();
  });
}

void WebSocketLink::on_read() {
  last_message_ = Clock::now();
  on_change_();
  std::string text = beast::buffers_to_string(stream_->buffer.data());
  stream_->buffer.consume(stream_->buffer.size());
  if (text.size() > context_.options.limits.inline_body_bytes) stream_->buffer.shrink_to_fit();
  // Beast has checked that text is UTF-8.
  if (!stream_->ws.got_text()) {
    reading_ = false;
    close(CloseCode::kUnknownData, "a binary message; wanted text");
    return read_next();
  }
  handle(std::move(text));
}

// The next message is read when the handler is done with this one.
void WebSocketLink::handle(std::string text) {
  if (text.size() + handler_->weight() <= context_.options.limits.inline_body_bytes) {
    guarded([&] { handler_->on_message(std::move(text)); });
    return read_again();
  }
  const std::size_t bytes = text.size();
  // The budget of request bodies, which a message is as well. By value: the work may outlive the server.
  const auto held = context_.bodies_bytes;
  if (held->fetch_add(bytes, std::memory_order_relaxed) + bytes > context_.options.limits.bodies_bytes) {
    held->fetch_sub(bytes, std::memory_order_relaxed);
    close(CloseCode::kTryAgainLater, "the server holds too many request bodies at once");
    return read_again();
  }
  const std::shared_ptr<void> counted(nullptr, [held, bytes](void*) { held->fetch_sub(bytes); });
  // reading_ stays set until the work is done, so messages come to the handler one at a time. finish() may run before
  // it, when the message is dropped, or meanwhile.
  auto work = [self = shared_from_this(), handler = handler_, text = std::move(text), counted]() mutable {
    if (!self->begin_aside()) return;
    guarded([&] { handler->on_message(std::move(text)); });
    if (self->end_aside()) {
      self->hub_->post([self] { self->read_again(); });
    } else {
      guarded([&] { handler->on_close(); });  // which finish() has left to this thread
    }
  };
  context_.dispatcher.run_aside(std::move(work));
}

// False: the connection is gone, and so is the handler.
bool WebSocketLink::begin_aside() {
  std::lock_guard lock(mutex_);
  handling_aside_ = !gone_;
  return handling_aside_;
}

// False: the connection is gone.
bool WebSocketLink::end_aside() {
  std::lock_guard lock(mutex_);
  handling_aside_ = false;
  return !gone_;
}

void WebSocketLink::read_again() {
  reading_ = false;
  read_next();
}

ResponderPtr WebSocketLink::open_stream(RequestLabel label, std::function<void()> on_end) {
  // The callback needs the exchange that it belongs to. Weak both ways: an exchange that held itself would never end.
  const auto which = std::make_shared<std::weak_ptr<Exchange>>();  // known in the next line
  auto exchange = std::make_shared<Exchange>(hub_, [weak = weak_from_this(), which] {
    const auto self = weak.lock();
    const auto answer = which->lock();
    if (self && answer) self->take_stream(answer);
  });
  *which = exchange;
  exchange->set_label(std::move(label));
  ResponderPtr responder = make_responder(exchange);
  bool gone = false;
  {
    std::lock_guard lock(mutex_);
    gone = gone_;
    if (!gone) streams_.push_back({exchange, std::move(on_end)});
  }
  // Outside of the lock: it may run callbacks.
  if (gone) exchange->client_gone();
  return responder;
}

void WebSocketLink::take_stream(const std::shared_ptr<Exchange>& answer) {
  if (done_) return;
  if (answer->too_slow()) {
    context_.counters.slow_readers.fetch_add(1, std::memory_order_relaxed);
    return finish();
  }
  Exchange::Taken taken;
  std::string lines;
  answer->take(taken, lines);
  const bool complete = taken.head && !taken.streaming;
  if (complete) lines = std::move(taken.response.body);
  {
    std::lock_guard lock(mutex_);
    std::string_view rest = lines;
    while (!rest.empty()) {
      // A writer of a stream writes complete lines, so a chunk never ends inside of one.
      const std::string_view line = rest.substr(0, rest.find('\n'));
      const std::size_t bytes = std::min(rest.size(), line.size() + 1);
      rest.remove_prefix(bytes);
      if (!line.empty()) queue_.push_back({std::string(line), answer, complete ? 0 : bytes});
    }
  }
  // Behind its last lines in the queue, as open_stream() promises.
  if (taken.ended) end_stream(answer);
  pump();
}

void WebSocketLink::end_stream(const std::shared_ptr<Exchange>& answer) {
  std::function<void()> on_end;
  {
    std::lock_guard lock(mutex_);
    const auto found =
        std::find_if(streams_.begin(), streams_.end(), [&](const OpenStream& one) { return one.answer == answer; });
    if (found == streams_.end()) return;
    on_end = std::move(found->on_end);
    streams_.erase(found);
  }
  // Destroys the callback that has called take_stream(): behind that, it uses nothing that it captures.
  answer->detach();
  last_message_ = Clock::now();
  on_change_();
  guarded(on_end);
}

// To the io thread, where alone the socket is written. Weak: the task may run after the connection has ended.
void WebSocketLink::poke() {
  hub_->post([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->pump();
  });
}

void WebSocketLink::send(std::string text) {
  {
    std::lock_guard lock(mutex_);
    if (gone_) return;
    unread_ += text.size();
    queue_.push_back({std::move(text), nullptr, 0});
  }
  poke();
}

void WebSocketLink::close(CloseCode code, std::string reason) {
  {
    std::lock_guard lock(mutex_);
    // The first close counts.
    if (gone_ || close_wanted_) return;
    close_wanted_.emplace(code, std::move(reason));
  }
  poke();
}

// One write at a time: Beast allows no second one before the first has completed. The close frame goes out when the
// queue is empty, so that everything that was queued before comes first.
void WebSocketLink::pump() {
  if (!open_ || done_ || writing_ || closing_) return;
  std::optional<std::pair<CloseCode, std::string>> last;
  {
    std::lock_guard lock(mutex_);
    if (queue_.empty()) {
      last = close_wanted_;
      if (!last) return;
    } else {
      // A member, since the write reads it until it has completed, also where finish() comes meanwhile.
      current_ = std::move(queue_.front());
      queue_.pop_front();
    }
  }
  if (last) {
    closing_ = true;
    // A read that is under way ends with it.
    stream_->ws.async_close(reason_of(last->first, last->second),
                            [self = shared_from_this()](error_code) { self->finish(); });
    return;
  }
  writing_ = true;
  stream_->ws.async_write(asio::buffer(current_.text), [self = shared_from_this()](error_code ec, std::size_t) {
    if (self->done_) return;
    ec ? self->finish() : self->on_written();
  });
}

void WebSocketLink::on_written() {
  writing_ = false;
  if (current_.stream) {
    current_.stream->bytes_sent(current_.counted);
  } else {
    std::lock_guard lock(mutex_);
    unread_ -= current_.text.size();
  }
  current_ = {};
  read_next();
  pump();
}

WebSocketLink::Clock::time_point WebSocketLink::idle_deadline() const {
  std::lock_guard lock(mutex_);
  // Not while an answer is made: the client may only be listening.
  if (!open_ || done_ || closing_ || !streams_.empty() || close_wanted_) return Clock::time_point::max();
  return last_message_ + context_.options.limits.websocket_idle_timeout;
}

void WebSocketLink::close_idle() {
  const auto limit = context_.options.limits.websocket_idle_timeout;
  close(CloseCode::kStopping, fmt::format("no message within {} ms", limit.count()));
}

void WebSocketLink::drain() {
  if (!open_ || done_ || std::exchange(draining_, true)) return;
  guarded([&] { handler_->on_drain(); });
}

// Once, whatever comes first: an error of the socket, the end of the close handshake, or the session's end. From done_
// on no callback does anything, and gone_ is the same for other threads.
void WebSocketLink::finish() {
  if (std::exchange(done_, true)) return;
  std::vector<OpenStream> streams;
  std::deque<Message> dropped;
  bool handling_aside = false;
  {
    std::lock_guard lock(mutex_);
    gone_ = true;
    handling_aside = handling_aside_;
    streams.swap(streams_);
    dropped.swap(queue_);
    unread_ = 0;
  }
  // Outside of the lock: client_gone() runs the callbacks of writers.
  for (const OpenStream& stream : streams) {
    stream.answer->detach();
    if (stream.answer->client_gone()) context_.counters.disconnects.fetch_add(1, std::memory_order_relaxed);
  }
  // The handler has a reference to this object, and this one to it: taking it out breaks the circle.
  const std::shared_ptr<WebSocketHandler> handler = std::move(handler_);
  // Behind an on_message() that the bodies thread runs now, on that thread: no waiting here, where all streams are.
  if (!handling_aside) guarded([&] { handler->on_close(); });
  on_change_();
}

}  // namespace millrace::http
