#include "http/session.h"

// clang-format off
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
// clang-format on

#include <fmt/core.h>

#include <algorithm>

#include "base/log.h"
#include "http/admission.h"
#include "http/upgrade.h"

namespace millrace::http {
namespace {

namespace asio = boost::asio;

// While read-ahead is full the socket is not read, so a FIN is looked for at this interval.
constexpr std::chrono::milliseconds kFinPollInterval{1'000};
constexpr std::string_view kPing = ": ping\n\n";
// A body's memory grows with what arrives, not with what Content-Length promises.
constexpr size_t kMaxBodyReserve = 1 << 20;

}  // namespace

Session::Session(Context& context, Socket socket, std::string client_address, bool over_unix_socket)
    : context_(context),
      socket_(std::move(socket)),
      event_(socket_.get_executor()),
      client_address_(std::move(client_address)),
      over_unix_socket_(over_unix_socket) {
  idle_since_ = last_progress_ = Clock::now();
}

void Session::start() {
  asio::co_spawn(
      socket_.get_executor(), [self = shared_from_this()] { return self->run(); }, asio::detached);
}

// The reset makes a client see a failure and not the regular end of a response; run() then finds closed_ and ends.
void Session::shut() {
  close(Next::kReset);
  notify();
}

void Session::evict() {
  evicted_ = true;
  notify();
}

Session::Awaitable<void> Session::wait(TimePoint deadline) {
  boost::system::error_code ec;  // aborted: notify(); none: the deadline. The caller looks at the state either way.
  event_.expires_at(deadline);
  co_await event_.async_wait(asio::redirect_error(asio::use_awaitable, ec));
}

// Keeps the session alive until it ends, by `self`. context_.sessions has it for shut() and evict(), and each callback
// that is under way keeps it too, so one that comes later finds closed_ and an object that is still there.
Session::Awaitable<void> Session::run() {
  auto self = shared_from_this();
  Next next = Next::kReset;
  try {
    do {
      next = co_await serve_one();
      first_request_ = false;
      // One connection that pipelines must not hold the thread.
      if (next == Next::kKeepAlive) co_await asio::post(socket_.get_executor(), asio::use_awaitable);
    } while (next == Next::kKeepAlive && !closed_);
    if (next == Next::kLinger && !closed_) co_await linger();
  } catch (const std::exception& problem) {
    LOG_ERROR("connection from {} failed: {}", client_address_, problem.what());
    next = Next::kReset;
  }
  // Only after an exception: run_handler() has taken it otherwise. Detached first, since its callback refers to this
  // object and its owner may answer at any time later.
  if (exchange_) {
    exchange_->detach();
    exchange_->client_gone();
    exchange_.reset();
  }
  close(next);
  context_.sessions.erase(self);
  context_.counters.open.fetch_sub(1, std::memory_order_relaxed);
  if (context_.on_session_closed) context_.on_session_closed();
}

Session::Awaitable<bool> Session::await_first_byte() {
  const Limits& limits = context_.options.limits;
  idle_ = true;
  idle_since_ = Clock::now();
  TimePoint deadline = idle_since_ + (first_request_ ? limits.header_timeout : limits.keep_alive_timeout);
  arm_read();
  // Whatever ends the wait (bytes, FIN, drain, eviction) calls notify(). What was received with the last request
  // counts: a client may have pipelined.
  while (input().empty() && !client_left() && !evicted_ && !context_.draining && Clock::now() < deadline) {
    co_await wait(deadline);
  }
  idle_ = false;
  co_return !input().empty() && !closed_;
}

// False with error_ set when there is no usable head.
Session::Awaitable<bool> Session::read_head() {
  const Limits& limits = context_.options.limits;
  TimePoint deadline = Clock::now() + limits.header_timeout;
  HeadScanner scanner(limits);
  while (true) {
    // The scanner remembers how far it has looked, so a head that comes byte by byte costs no more than one that comes
    // whole.
    HeadScanner::State state = scanner.scan(input());
    if (state == HeadScanner::State::kComplete) {
      error_ = parse_head(input().substr(0, scanner.head_bytes()), limits, head_);
      consume(scanner.head_bytes());
      co_return !error_;
    }
    // Bytes that can be no request are refused before their end has come.
    if (state == HeadScanner::State::kError) {
      error_ = scanner.error();
      co_return false;
    }
    if (client_left()) {
      error_ = {400, "the connection ended inside a request head"};
      co_return false;
    }
    if (Clock::now() >= deadline) {
      error_ = {408, fmt::format("no complete request head within {} ms", limits.header_timeout.count())};
      co_return false;
    }
    co_await wait(deadline);
  }
}

// False with error_ set when the body is malformed, too large or late.
Session::Awaitable<bool> Session::read_body(BodyReader& reader, bool send_continue) {
  const Limits& limits = context_.options.limits;
  TimePoint start = Clock::now();
  TimePoint last = start;
  if (send_continue && input().empty() && !reader.done() && !reader.error()) {
    // RFC 9110, section 10.1.1: not where body bytes have come already, nor where there is nothing to wait for.
    segments_ = {"HTTP/1.1 100 Continue\r\n\r\n", "", "", ""};
    segment_at_ = 0;
    pump();
  }
  while (true) {
    if (size_t taken = reader.consume(input(), request_->body); taken > 0) {
      last = Clock::now();
      consume(taken);
      // Counted as it grows, and given off by the request's destructor: a handler may hold it for minutes.
      if (request_->count() > limits.bodies_bytes) {
        error_ = {503, "the server holds too many request bodies at once"};
        co_return false;
      }
    }
    if (reader.done()) co_return true;
    // Two limits: a client that sends a byte now and then keeps within the first one for ever.
    TimePoint deadline = std::min(last + limits.body_idle_timeout, start + limits.body_total_timeout);
    if (reader.error()) {
      error_ = reader.error();
      co_return false;
    }
    if (client_left()) {
      error_ = {400, "the connection ended inside a request body"};
      co_return false;
    }
    if (Clock::now() >= deadline) {
      error_ = {408, "the request body did not arrive in time"};
      co_return false;
    }
    co_await wait(deadline);
  }
}

void Session::name_request() {
  const std::string* given = usable_request_id(head_);
  uint64_t id = context_.next_request++;
  // The golden ratio's multiple spreads consecutive numbers over 64 bits.
  request_id_ = given != nullptr ? *given : fmt::format("req-{:016x}", context_.id_seed ^ (id * 0x9E3779B97F4A7C15ULL));
}

std::shared_ptr<CountedRequest> Session::make_request(RouteTable::Match& match) {
  auto request = std::make_shared<CountedRequest>(context_.bodies_bytes);
  request->id = context_.next_request - 1;
  request->request_id = request_id_;
  request->method = head_.method;
  request->path = head_.path;
  request->query = head_.query;
  request->version = head_.minor_version == 0 ? "1.0" : "1.1";
  request->headers = head_.headers;
  request->client_address = client_address_;
  request->params = std::move(match.params);
  request->body.reserve(std::min<uint64_t>(head_.content_length, kMaxBodyReserve));
  return request;
}

// Decides what becomes of a parsed head: the route to run, or nullptr with refusal_ set.
const Route* Session::decide() {
  const ServerOptions& options = context_.options;
  keep_alive_ = head_.keep_alive && !context_.draining;
  cors_origin_ = context_.gate->cors_origin(head_);
  RouteTable::Match match = context_.router.match(head_.method, head_.segments);
  request_ = make_request(match);
  std::optional<Response> refusal = admit(options, *context_.gate, match, head_, over_unix_socket_, request_id_);
  request_->trusted = context_.gate->trusts(head_, client_address_);
  if (!refusal) return match.route;
  refusal_ = std::move(*refusal);
  return nullptr;
}

Session::Awaitable<Session::Next> Session::serve_one() {
  bool more = co_await await_first_byte();
  if (!more) co_return Next::kClose;
  head_ = RequestHead();
  keep_alive_ = false;
  cors_origin_.clear();
  const ServerOptions& options = context_.options;
  bool good = co_await read_head();
  if (closed_ || broken_) co_return Next::kReset;
  context_.counters.requests.fetch_add(1, std::memory_order_relaxed);
  name_request();
  const Route* route = nullptr;
  route_ = nullptr;
  if (!good) {
    refusal_ = render_error(options, nullptr, error_, request_id_);
  } else {
    route_ = route = decide();
  }
  // Before the body: a request for a WebSocket has none, and bytes behind it are frames.
  if (route != nullptr && route->websocket) {
    const Next end = co_await run_websocket(*route);
    co_return end;
  }
  if (route != nullptr) {
    BodyReader reader(head_, body_limit(options, route));
    good = co_await read_body(reader, head_.expect_continue);
    if (good) co_return co_await run_handler(*route);
    keep_alive_ = false;
    request_.reset();  // its bytes count against the budget of all
    refusal_ = render_error(options, route, error_, request_id_);
  }
  if (closed_ || broken_) co_return Next::kReset;
  // The body of a refused request is read away after the answer when that is cheap; the connection closes otherwise.
  bool discard = good && keep_alive_ && head_.has_body();
  if (discard && (head_.chunked || head_.content_length > options.limits.discard_bytes || head_.expect_continue ||
                  refusal_.status == 413)) {
    keep_alive_ = discard = false;
  }
  Next next = co_await refuse();
  if (!discard || next != Next::kKeepAlive) co_return next;
  BodyReader reader(head_, options.limits.discard_bytes);
  good = co_await read_body(reader, false);
  co_return good ? Next::kKeepAlive : Next::kClose;
}

Session::Awaitable<Session::Next> Session::refuse() {
  bool written = co_await flush();  // a 100 Continue may still be on its way
  if (!written) co_return Next::kReset;
  LOG_DEBUG("{} {} {} -> {}", client_address_, head_.method, head_.path, refusal_.status);
  queue_response(std::move(refusal_));
  written = co_await flush();
  if (!written) co_return Next::kReset;
  co_return keep_alive_ ? Next::kKeepAlive : Next::kLinger;
}

Session::Awaitable<bool> Session::flush() {
  pump();
  while (!output_empty()) {
    if (closed_ || broken_ || write_stalled(Clock::now())) co_return false;
    co_await wait(write_deadline());
  }
  co_return !closed_ && !broken_;
}

void Session::call_handler(const Route& route) {
  end_loaded_ = exchange_done_ = too_slow_ = aborted_ = chunked_out_ = event_stream_ = false;
  context_.counters.active.fetch_add(1, std::memory_order_relaxed);
  // The callback refers to this object without a reference: finish_exchange() and run() detach it before the session
  // ends, and both are on the io thread, as the callback is.
  exchange_ = std::make_shared<Exchange>(context_.hub, [this] { pump(); });
  const std::string* traceparent = request_->headers.find("traceparent");
  exchange_->set_label(
      {request_->method, request_->path, request_id_, traceparent != nullptr ? *traceparent : std::string()});
  context_.dispatcher.dispatch(route, std::move(request_), exchange_);
  pump();
}

Session::Awaitable<Session::Next> Session::run_handler(const Route& route) {
  bool written = co_await flush();
  if (!written) co_return Next::kReset;
  call_handler(route);
  bool stalled = false;
  // A FIN before the end of the response is a client that left: browsers and HTTP libraries close both ways at once,
  // and to compute for one that does not read costs more than to fail one that only closed its own.
  while (!exchange_done_ && !closed_ && !broken_ && !too_slow_ && !(eof_ && !exchange_->ended())) {
    TimePoint now = Clock::now();
    stalled = write_stalled(now);
    if (stalled) break;
    if (now >= ping_time()) {
      // By way of the exchange, like any event of the stream: so it never stands inside of another one.
      exchange_->write(kPing);
      last_progress_ = now;
    }
    TimePoint deadline = std::min(write_deadline(), ping_time());
    if (read_paused()) deadline = std::min(deadline, now + kFinPollInterval);
    co_await wait(deadline);
    if (read_paused()) poll_for_fin();
  }
  co_return finish_exchange(stalled);
}

// False with refusal_ set.
bool Session::open_websocket(const Route& route) {
  HttpError wrong = check_upgrade(head_);
  // RFC 6455, section 4.1: a client sends no frame before the server's answer. Beast would not see bytes that are in
  // in_.
  if (!wrong && !input().empty()) wrong = {400, "bytes behind a WebSocket's request; wanted none before its answer"};
  if (wrong) {
    refusal_ = render_error(context_.options, &route, wrong, request_id_);
    if (wrong.status == 426) refusal_.headers.add("Upgrade", "websocket");
    return false;
  }
  auto link = make_websocket_link(context_, socket_, shared_from_this(), [this] { notify(); });
  WebSocketAnswer answer = route.websocket(*request_, link);
  if (Response* refusal = std::get_if<Response>(&answer)) {
    refusal_ = std::move(*refusal);
    return false;
  }
  std::string protocol;
  for (std::string_view offered : offered_protocols(head_.headers)) {
    if (offered == route.websocket_protocol) protocol = offered;
  }
  // From here on the link reads and writes: a wait for reading that is still pending finds websocket_ and does nothing.
  websocket_ = std::move(link);
  websocket_->start(head_, request_id_, protocol, std::get<std::shared_ptr<WebSocketHandler>>(std::move(answer)));
  return true;
}

Session::Awaitable<Session::Next> Session::run_websocket(const Route& route) {
  const bool opened = open_websocket(route);
  if (!opened) {
    keep_alive_ = false;
    const Next refused = co_await refuse();
    co_return refused;
  }
  count_status(101);
  context_.counters.active.fetch_add(1, std::memory_order_relaxed);
  while (!websocket_->done() && !closed_) {
    if (context_.draining) websocket_->drain();
    if (Clock::now() >= websocket_->idle_deadline()) websocket_->close_idle();
    co_await wait(websocket_->idle_deadline());
  }
  // Where the session is shut, the link has not noticed it yet. So its handler gets on_close() in any case, once.
  websocket_->finish();
  websocket_.reset();  // what is under way keeps it, and it keeps this session
  context_.counters.active.fetch_sub(1, std::memory_order_relaxed);
  co_return Next::kClose;
}

Session::Next Session::finish_exchange(bool stalled) {
  std::shared_ptr<Exchange> exchange = std::move(exchange_);
  exchange->detach();
  segment_at_ = segments_.size();
  free_chunk();  // before what it counted is released
  counted_.reset();
  auto& counters = context_.counters;
  counters.active.fetch_sub(1, std::memory_order_relaxed);
  if (exchange_done_) {
    // A chunked body without its last chunk is visibly cut off. With any other framing only a reset shows it.
    if (aborted_) return chunked_out_ ? Next::kClose : Next::kReset;
    return keep_alive_ ? Next::kKeepAlive : Next::kLinger;
  }
  LOG_DEBUG("{} left before the response to {} {} ended", client_address_, head_.method, head_.path);
  counters.disconnects.fetch_add(1, std::memory_order_relaxed);
  if (too_slow_ || stalled) counters.slow_readers.fetch_add(1, std::memory_order_relaxed);
  exchange->client_gone();
  return Next::kReset;
}

// Closing with unread input makes the kernel send a RST, which may destroy a response still on its way. So the input is
// read away for a while first (RFC 9112 9.6).
Session::Awaitable<void> Session::linger() {
  boost::system::error_code ec;
  socket_.shutdown(Socket::shutdown_send, ec);
  TimePoint deadline = Clock::now() + context_.options.limits.linger_timeout;
  while (!client_left() && Clock::now() < deadline) {
    consume(input().size());
    arm_read();
    co_await wait(deadline);
  }
}

}  // namespace millrace::http
