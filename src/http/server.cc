#include "http/server.h"

#include "http/detached.h"
#include "http/session.h"
#include "http/unix_socket.h"

// clang-format off
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
// clang-format on

#include <fcntl.h>
#include <fmt/core.h>
#include <netinet/tcp.h>
#include <pthread.h>

#include <condition_variable>
#include <list>
#include <mutex>
#include <random>
#include <thread>

#include "base/log.h"

namespace millrace::http {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using UnixStream = asio::local::stream_protocol;
using boost::system::error_code;

constexpr int kListenBacklog = 4096;                         // the kernel clips it to net.core.somaxconn
constexpr std::chrono::milliseconds kAcceptRetryDelay{100};  // after running out of file descriptors
constexpr std::chrono::milliseconds kFullRetryDelay{50};     // while `connections` is reached
constexpr std::chrono::seconds kEvictableIdle{1};            // younger idle connections are not evicted
constexpr std::chrono::milliseconds kDrainPoll{5};

std::string without_brackets(const std::string& host) {
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') return host.substr(1, host.size() - 2);
  return host;
}

// Asio opens sockets that programs started from here would inherit. A copy in another process keeps a connection, and
// the port, alive after this one has closed them.
void close_on_exec(int socket) { ::fcntl(socket, F_SETFD, FD_CLOEXEC); }

}  // namespace

class Server::Impl {
 public:
  explicit Impl(ServerOptions options);
  ~Impl() { stop(); }

  Status start();
  void stop_accepting();
  bool drain(std::chrono::milliseconds timeout);
  void stop();
  void post_after(std::chrono::milliseconds delay, std::function<void()> function);

  Context context;
  DetachedExchanges detached;
  uint16_t port = 0;
  std::string url;
  bool is_local = true;

 private:
  Status resolve(tcp::endpoint& endpoint);
  Status bind(const tcp::endpoint& endpoint);
  Status bind_unix();
  // One for each acceptor, with a pause of its own.
  template <typename Acceptor>
  asio::awaitable<void> accept_loop(Acceptor& acceptor, asio::steady_timer& pause);
  asio::awaitable<void> sleep(asio::steady_timer& pause, std::chrono::milliseconds delay);
  void check_called_from_outside();
  bool evict_one_idle();
  void adopt(tcp::socket socket);
  void adopt(UnixStream::socket socket);
  void serve(std::shared_ptr<Session> session);
  void close_acceptors();  // io thread

  asio::io_context io_{1};
  std::optional<asio::executor_work_guard<asio::io_context::executor_type>> work_;
  tcp::acceptor acceptor_{io_};
  UnixStream::acceptor unix_acceptor_{io_};
  UnixSocketFile unix_file_;
  asio::steady_timer accept_pause_{io_}, unix_accept_pause_{io_};
  std::list<std::shared_ptr<asio::steady_timer>> timers_;  // of post_after; io thread
  std::thread thread_;
  bool accepting_ = false;  // io thread
  bool stopping_ = false;   // io thread
};

Server::Impl::Impl(ServerOptions options) : context(std::move(options)) {
  context.hub =
      std::make_shared<Hub>([this] { asio::post(io_, [hub = context.hub] { hub->run(); }); }, context.options.limits);
  std::random_device entropy;
  context.id_seed = (static_cast<uint64_t>(entropy()) << 32) | entropy();
  context.on_session_closed = [this] { accept_pause_.cancel(), unix_accept_pause_.cancel(); };
}

Status Server::Impl::resolve(tcp::endpoint& endpoint) {
  const ServerOptions& options = context.options;
  error_code ec;
  std::string host = without_brackets(options.host);
  // The resolver would take it for all addresses.
  if (host.empty()) return invalid_argument("host is ''; wanted an IP address or a name of this machine");
  asio::ip::address address = asio::ip::make_address(host, ec);
  if (!ec) {
    endpoint = {address, options.port};
    return ok_status();
  }
  tcp::resolver resolver(io_);
  auto found = resolver.resolve(host, std::to_string(options.port), tcp::resolver::passive, ec);
  if (ec || found.empty()) {
    return invalid_argument("host '{}' cannot be resolved ({}); wanted an IP address or a name of this machine",
                            options.host, ec.message());
  }
  endpoint = *found.begin();
  return ok_status();
}

Status Server::Impl::bind(const tcp::endpoint& endpoint) {
  const ServerOptions& options = context.options;
  error_code ec;
  acceptor_.open(endpoint.protocol(), ec);
  if (!ec) close_on_exec(acceptor_.native_handle());
  if (!ec) acceptor_.set_option(tcp::acceptor::reuse_address(true), ec);
  if (!ec && endpoint.address().is_v6() && endpoint.address().is_unspecified()) {
    acceptor_.set_option(asio::ip::v6_only(false), ec);  // "::" serves IPv4 too
  }
  if (!ec) acceptor_.bind(endpoint, ec);
  if (!ec) acceptor_.listen(kListenBacklog, ec);
  if (!ec) acceptor_.non_blocking(true, ec);
  if (!ec) return ok_status();
  error_code ignored;
  acceptor_.close(ignored);
  if (ec == asio::error::address_in_use) {
    return error(StatusCode::kUnavailable,
                 "{}:{} is already in use; stop the other program or choose another port (--port, 0 picks a free one)",
                 options.host, options.port);
  }
  if (ec == asio::error::access_denied) {
    return error(StatusCode::kPermissionDenied, "no permission to listen on {}:{}; ports below 1024 need root",
                 options.host, options.port);
  }
  // An address may come later, as at boot.
  const bool later = ec == boost::system::errc::address_not_available;
  return error(later ? StatusCode::kUnavailable : StatusCode::kInvalidArgument,
               "cannot listen on {}:{}: {}; wanted an address of this machine", options.host, options.port,
               ec.message());
}

// Beside the address of bind().
Status Server::Impl::bind_unix() {
  const std::string& path = context.options.unix_socket;
  if (path.empty()) return ok_status();
  error_code ec;
  unix_acceptor_.open(UnixStream(), ec);
  if (ec) return internal_error("cannot open a Unix socket: {}", ec.message());
  close_on_exec(unix_acceptor_.native_handle());
  RETURN_IF_ERROR(unix_file_.bind(unix_acceptor_.native_handle(), path));
  unix_acceptor_.listen(kListenBacklog, ec);
  if (!ec) unix_acceptor_.non_blocking(true, ec);
  if (ec) return internal_error("cannot listen on {}: {}", path, ec.message());
  return ok_status();
}

Status Server::Impl::start() {
  CHECK(!thread_.joinable());
  const bool has_tcp = context.options.tcp;
  CHECK(has_tcp || !context.options.unix_socket.empty());
  tcp::endpoint endpoint;
  if (has_tcp) RETURN_IF_ERROR(resolve(endpoint));
  if (has_tcp) RETURN_IF_ERROR(bind(endpoint));
  RETURN_IF_ERROR(bind_unix());
  port = has_tcp ? acceptor_.local_endpoint().port() : 0;
  url = has_tcp ? "http://" + format_endpoint({endpoint.address(), port}) : "unix:" + context.options.unix_socket;
  is_local = !has_tcp || endpoint.address().is_loopback();
  context.gate.emplace(context.options, is_local);
  work_.emplace(io_.get_executor());
  accepting_ = true;
  if (has_tcp) asio::co_spawn(io_, accept_loop(acceptor_, accept_pause_), asio::detached);
  if (unix_acceptor_.is_open()) {
    asio::co_spawn(io_, accept_loop(unix_acceptor_, unix_accept_pause_), asio::detached);
  }
  context.dispatcher.start();
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "http");
    io_.run();
  });
  return ok_status();
}

asio::awaitable<void> Server::Impl::sleep(asio::steady_timer& pause, std::chrono::milliseconds delay) {
  error_code ec;
  pause.expires_after(delay);
  co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, ec));
}

bool Server::Impl::evict_one_idle() {
  auto limit = Session::Clock::now() - kEvictableIdle;
  Session* oldest = nullptr;
  for (const auto& session : context.sessions) {
    if (!session->idle() || session->idle_since() > limit) continue;
    if (oldest == nullptr || session->idle_since() < oldest->idle_since()) oldest = session.get();
  }
  if (oldest != nullptr) oldest->evict();
  return oldest != nullptr;
}

template <typename Acceptor>
asio::awaitable<void> Server::Impl::accept_loop(Acceptor& acceptor, asio::steady_timer& pause) {
  while (accepting_) {
    if (context.sessions.size() >= context.options.limits.connections) {
      error_code full;
      co_await acceptor.async_wait(Acceptor::wait_read, asio::redirect_error(asio::use_awaitable, full));
      if (!accepting_ || context.sessions.size() < context.options.limits.connections) continue;
      evict_one_idle();
      co_await sleep(pause, kFullRetryDelay);  // cut short when a session closes
      continue;
    }
    error_code ec;
    auto socket = co_await acceptor.async_accept(asio::redirect_error(asio::use_awaitable, ec));
    if (!accepting_) break;
    if (!ec) {
      adopt(std::move(socket));
      continue;
    }
    if (ec == asio::error::connection_aborted || ec == asio::error::interrupted) continue;
    // EMFILE, ENFILE, ENOBUFS, ENOMEM: the connection stays in the backlog, so accepting at once would spin.
    uint64_t errors = context.counters.accept_errors.fetch_add(1, std::memory_order_relaxed) + 1;
    if ((errors & (errors - 1)) == 0)
      LOG_WARNING("cannot accept a connection ({}); {} such errors", ec.message(), errors);
    evict_one_idle();
    co_await sleep(pause, kAcceptRetryDelay);
  }
}

void Server::Impl::adopt(tcp::socket socket) {
  close_on_exec(socket.native_handle());
  error_code ec;
  socket.non_blocking(true, ec);
  if (!ec) socket.set_option(tcp::no_delay(true), ec);
  using UnsentLimit = asio::detail::socket_option::integer<IPPROTO_TCP, TCP_NOTSENT_LOWAT>;
  if (!ec) socket.set_option(UnsentLimit(kUnsentBytesInKernel), ec);
  if (ec) return;  // gone already
  const tcp::endpoint peer = socket.remote_endpoint(ec);
  serve(std::make_shared<Session>(context, std::move(socket), ec ? "" : format_endpoint(peer), false));
}

void Server::Impl::adopt(UnixStream::socket socket) {
  close_on_exec(socket.native_handle());
  error_code ec;
  socket.non_blocking(true, ec);
  if (!ec) serve(std::make_shared<Session>(context, std::move(socket), "unix", true));
}

void Server::Impl::serve(std::shared_ptr<Session> session) {
  context.sessions.insert(session);
  context.counters.accepted.fetch_add(1, std::memory_order_relaxed);
  context.counters.open.fetch_add(1, std::memory_order_relaxed);
  session->start();
}

void Server::Impl::close_acceptors() {
  accepting_ = false;
  error_code ec;
  acceptor_.close(ec);
  unix_acceptor_.close(ec);
  unix_file_.remove();
  accept_pause_.cancel();
  unix_accept_pause_.cancel();
  for (const auto& session : context.sessions) session->notify();
}

// Waiting there for the threads' own work would never end.
void Server::Impl::check_called_from_outside() {
  CHECK(std::this_thread::get_id() != thread_.get_id());
  CHECK(!context.dispatcher.on_bodies_thread());
}

void Server::Impl::stop_accepting() {
  if (!thread_.joinable() || context.draining.exchange(true)) return;
  asio::post(io_, [this] { close_acceptors(); });
}

bool Server::Impl::drain(std::chrono::milliseconds timeout) {
  if (!thread_.joinable()) return true;
  check_called_from_outside();
  stop_accepting();
  auto deadline = std::chrono::steady_clock::now() + timeout;
  while (context.counters.open.load(std::memory_order_acquire) > 0 || detached.any_open()) {
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(kDrainPoll);
  }
  return true;
}

void Server::Impl::stop() {
  if (!thread_.joinable()) {
    context.hub->close();
    return;
  }
  check_called_from_outside();
  context.draining = true;
  // The io thread still runs then: a handler may just have submitted a request, and its on_disconnect must cancel it.
  context.dispatcher.stop();
  asio::post(io_, [this] {
    stopping_ = true;
    close_acceptors();
    for (const auto& session : context.sessions) session->shut();
    detached.end_all();
    for (const auto& timer : timers_) timer->cancel();
    work_.reset();
  });
  thread_.join();
  context.dispatcher.clear();
  context.hub->close();
}

void Server::Impl::post_after(std::chrono::milliseconds delay, std::function<void()> function) {
  context.hub->post([this, delay, function = std::move(function)]() mutable {
    if (stopping_) return;
    auto timer = std::make_shared<asio::steady_timer>(io_, delay);
    auto position = timers_.insert(timers_.end(), timer);
    timer->async_wait([this, timer, position, function = std::move(function)](error_code ec) {
      timers_.erase(position);
      if (!ec && !stopping_) context.hub->post(function);
    });
  });
}

Server::Server(ServerOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Server::~Server() { stop(); }
void Server::add_route(Route route) { impl_->context.router.add(std::move(route)); }
std::vector<const Route*> Server::routes() const { return impl_->context.router.routes(); }
Status Server::start() { return impl_->start(); }
uint16_t Server::port() const { return impl_->port; }
std::string Server::url() const { return impl_->url; }
bool Server::is_local() const { return impl_->is_local; }
void Server::stop_accepting() { impl_->stop_accepting(); }
bool Server::drain(std::chrono::milliseconds timeout) { return impl_->drain(timeout); }
void Server::stop() { impl_->stop(); }
ResponderPtr Server::detached_responder(RequestLabel label) {
  return impl_->detached.add(impl_->context.hub, std::move(label));
}
void Server::post(std::function<void()> function) { impl_->context.hub->post(std::move(function)); }
void Server::post_aside(std::function<void()> function) {
  impl_->context.hub->post(
      [this, function = std::move(function)]() mutable { impl_->context.dispatcher.run_aside(std::move(function)); });
}
void Server::post_after(std::chrono::milliseconds delay, std::function<void()> function) {
  impl_->post_after(delay, std::move(function));
}

ServerStats Server::stats() const {
  const Context::Counters& from = impl_->context.counters;
  auto get = [](const std::atomic<uint64_t>& value) { return value.load(std::memory_order_relaxed); };
  ServerStats stats;
  stats.connections_accepted = get(from.accepted);
  stats.connections_open = get(from.open);
  stats.requests = get(from.requests);
  stats.requests_active = get(from.active);
  stats.responses_2xx = get(from.ok);
  stats.responses_4xx = get(from.client_errors);
  stats.responses_5xx = get(from.server_errors);
  stats.disconnects = get(from.disconnects);
  stats.slow_readers = get(from.slow_readers);
  stats.accept_errors = get(from.accept_errors);
  return stats;
}

}  // namespace millrace::http
