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
    if (unread_ > context_.options.limits.websocket_unread_bytes) return;
  }
  reading_ = true;
  stream_->ws.async_read(stream_->buffer, [self = shared_from_this()](error_code ec, std::size_t) {
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
  if (!stream_->ws.got_text()) {
    reading_ = false;
    close(CloseCode::kUnknownData, "a binary message; wanted text");
    return read_next();
  }
  handle(std::move(text));
}

// The next message is read when the handler is done with this one.
void WebSocketLink::handle(std::string text) {
  if (text.size() <= context_.options.limits.inline_body_bytes) {
    guarded([&] { handler_->on_message(std::move(text)); });
    return read_again();
  }
  const std::size_t bytes = text.size();
  const auto held = context_.bodies_bytes;
  if (held->fetch_add(bytes, std::memory_order_relaxed) + bytes > context_.options.limits.bodies_bytes) {
    held->fetch_sub(bytes, std::memory_order_relaxed);
    close(CloseCode::kTryAgainLater, "the server holds too many request bodies at once");
    return read_again();
  }
  const std::shared_ptr<void> counted(nullptr, [held, bytes](void*) { held->fetch_sub(bytes); });
  auto work = [self = shared_from_this(), handler = handler_, text = std::move(text), counted]() mutable {
    guarded([&] { handler->on_message(std::move(text)); });
    self->hub_->post([self] { self->read_again(); });
  };
  context_.dispatcher.run_aside(std::move(work));
}

void WebSocketLink::read_again() {
  reading_ = false;
  read_next();
}

ResponderPtr WebSocketLink::open_stream(RequestLabel label, std::function<void()> on_end) {
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
      const std::string_view line = rest.substr(0, rest.find('\n'));
      const std::size_t bytes = std::min(rest.size(), line.size() + 1);
      rest.remove_prefix(bytes);
      if (!line.empty()) queue_.push_back({std::string(line), answer, complete ? 0 : bytes});
    }
  }
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
  answer->detach();
  last_message_ = Clock::now();
  on_change_();
  guarded(on_end);
}

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
    if (gone_ || close_wanted_) return;
    close_wanted_.emplace(code, std::move(reason));
  }
  poke();
}

void WebSocketLink::pump() {
  if (!open_ || done_ || writing_ || closing_) return;
  std::optional<std::pair<CloseCode, std::string>> last;
  {
    std::lock_guard lock(mutex_);
    if (queue_.empty()) {
      last = close_wanted_;
      if (!last) return;
    } else {
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

void WebSocketLink::finish() {
  if (std::exchange(done_, true)) return;
  std::vector<OpenStream> streams;
  std::deque<Message> dropped;
  {
    std::lock_guard lock(mutex_);
    gone_ = true;
    streams.swap(streams_);
    dropped.swap(queue_);
    unread_ = 0;
  }
  for (const OpenStream& stream : streams) {
    stream.answer->detach();
    if (stream.answer->client_gone()) context_.counters.disconnects.fetch_add(1, std::memory_order_relaxed);
  }
  const std::shared_ptr<WebSocketHandler> handler = std::move(handler_);
  guarded([&] { handler->on_close(); });
  on_change_();
}

}  // namespace millrace::http
