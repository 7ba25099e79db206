// One connection: reads requests, runs them one at a time, writes their responses. Internal to http/.
//
// Owner: the server's Context, until it ends; its callbacks hold it too. Thread safety: everything runs on the io
// thread. A coroutine (run) carries the order of things; reading and writing
// go on beside it as plain readiness callbacks which wake it through `event_`. So a client that leaves is seen while
// its response is pending, and a stream is written the moment a chunk is queued, without resuming the coroutine.
//
// Invariants: `in_` holds at most read_ahead bytes (or one head); at most one exchange exists; segments_ are bytes that
// must go out before anything else.
#pragma once

#include <utility>  // before asio/awaitable.hpp, which uses std::exchange without it
// clang-format off
#include <boost/asio/awaitable.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
// clang-format on

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>

#include "http/body.h"
#include "http/dispatcher.h"
#include "http/exchange.h"
#include "http/gate.h"
#include "http/request_head.h"
#include "http/response_head.h"
#include "http/route_table.h"
#include "http/server.h"
#include "http/websocket_link.h"

namespace millrace::http {

class Session;

// "127.0.0.1:80" or "[::1]:80".
std::string format_endpoint(const boost::asio::ip::tcp::endpoint& endpoint);

// A request that counts its body against the server's budget while a handler holds it.
struct CountedRequest : Request {
  explicit CountedRequest(std::shared_ptr<std::atomic<std::size_t>> given) : budget(std::move(given)) {}
  ~CountedRequest() { budget->fetch_sub(counted, std::memory_order_relaxed); }
  // Counts what `body` has grown by; the bytes of all bodies now.
  std::size_t count() {
    const std::size_t more = body.size() - counted;
    counted += more;
    return budget->fetch_add(more, std::memory_order_relaxed) + more;
  }

  std::shared_ptr<std::atomic<std::size_t>> budget;  // shared: a request may outlive the server
  std::size_t counted = 0;
};

// What the sessions of one server share. Atomics may be read from any thread; the rest belongs to the io thread.
struct Context {
  explicit Context(ServerOptions given) : options(std::move(given)) {}

  struct Counters {
    std::atomic<uint64_t> accepted{0}, open{0}, requests{0}, active{0}, ok{0}, client_errors{0}, server_errors{0},
        disconnects{0}, slow_readers{0}, accept_errors{0};
  };

  const ServerOptions options;
  RouteTable router;
  std::optional<Gate> gate;
  std::shared_ptr<Hub> hub;
  Counters counters;
  const std::shared_ptr<std::atomic<std::size_t>> bodies_bytes = std::make_shared<std::atomic<std::size_t>>(0);
  Dispatcher dispatcher{options.limits.inline_body_bytes};
  std::atomic<bool> draining{false};
  DateCache date;
  uint64_t next_request = 1;
  uint64_t id_seed = 0;  // makes generated request ids differ between runs
  std::unordered_set<std::shared_ptr<Session>> sessions;
  std::function<void()> on_session_closed;
  static constexpr std::size_t kScratchBytes = 64 << 10;
  std::array<char, kScratchBytes> scratch;  // the target of every read; idle connections own no buffer
};

class Session : public std::enable_shared_from_this<Session> {
 public:
  using Clock = std::chrono::steady_clock;
  using TimePoint = Clock::time_point;

  // Of TCP or of a Unix socket.
  using Socket = boost::asio::generic::stream_protocol::socket;

  // `client_address` as Request has it.
  Session(Context& context, Socket socket, std::string client_address, bool over_unix_socket);

  void start();
  // Cuts the connection (RST); its exchange sees the client gone.
  void shut();
  // Looks again at draining and the like.
  void notify() { event_.cancel(); }
  // Between requests with nothing received.
  bool idle() const { return idle_; }
  TimePoint idle_since() const { return idle_since_; }
  // Makes an idle session end soon, so that another can begin.
  void evict();

 private:
  template <typename T>
  using Awaitable = boost::asio::awaitable<T>;
  enum class Next : uint8_t { kKeepAlive, kClose, kLinger, kReset };

  // session.cc: the order of things. No coroutine has a parameter or a temporary with a destructor across a co_await:
  // g++ 12 miscompiles those.
  Awaitable<void> run();
  Awaitable<Next> serve_one();
  Awaitable<bool> await_first_byte();
  Awaitable<bool> read_head();
  Awaitable<bool> read_body(BodyReader& reader, bool send_continue);
  Awaitable<Next> refuse();
  Awaitable<Next> run_handler(const Route& route);
  void call_handler(const Route& route);
  Awaitable<Next> run_websocket(const Route& route);
  bool open_websocket(const Route& route);
  Awaitable<bool> flush();
  Awaitable<void> linger();
  Awaitable<void> wait(TimePoint deadline);
  const Route* decide();
  Next finish_exchange(bool stalled);
  std::shared_ptr<CountedRequest> make_request(RouteTable::Match& match);
  void name_request();

  // session_io.cc: bytes.
  std::string_view input() const { return std::string_view(in_).substr(in_at_); }
  void consume(std::size_t count);
  std::size_t read_ahead_limit() const;
  bool read_paused() const { return in_.size() - in_at_ >= read_ahead_limit(); }
  void poll_for_fin();
  void arm_read();
  void on_readable();
  bool client_left() const { return eof_ || broken_ || closed_; }
  void pump();
  bool take();
  void load_head(Response& response, bool streaming);
  void queue_response(Response response);
  void free_chunk();
  bool output_empty() const { return segment_at_ == segments_.size(); }
  void advance(std::size_t count);
  void arm_write();
  bool write_stalled(TimePoint now) const;
  TimePoint write_deadline() const;
  TimePoint ping_time() const;
  void count_status(int status);
  void close(Next how);

  Context& context_;
  Socket socket_;
  boost::asio::steady_timer event_;
  const std::string client_address_;
  const bool over_unix_socket_;

  std::string in_;
  std::size_t in_at_ = 0;
  bool reading_ = false;
  bool eof_ = false;     // the client's FIN was read
  bool broken_ = false;  // the socket failed
  bool closed_ = false;
  bool evicted_ = false;
  bool idle_ = true;
  bool first_request_ = true;
  std::shared_ptr<WebSocketLink> websocket_;  // which reads and writes from then on
  TimePoint idle_since_;

  // The request being served.
  RequestHead head_;
  std::string request_id_;
  const Route* route_ = nullptr;  // whose handler it goes to
  std::string cors_origin_;
  bool keep_alive_ = true;
  std::shared_ptr<CountedRequest> request_;
  HttpError error_;                // why read_head or read_body gave up
  Response refusal_;               // what refuse() sends
  std::shared_ptr<void> counted_;  // of the body that is sent
  std::shared_ptr<Exchange> exchange_;
  bool end_loaded_ = false;     // the exchange's last bytes are in segments_
  bool exchange_done_ = false;  // ... and written
  bool too_slow_ = false;
  bool aborted_ = false;
  bool chunked_out_ = false;
  bool event_stream_ = false;  // comments may stand between its events

  // Output: views of the strings below, or of literals.
  std::array<std::string_view, 4> segments_;
  std::size_t segment_at_ = 4;
  std::string head_text_;
  std::string frame_;
  std::string chunk_;
  bool chunk_counts_ = false;  // chunk_ holds stream bytes, to be counted off the exchange's unsent
  bool write_armed_ = false;
  TimePoint last_progress_;
};

}  // namespace millrace::http
