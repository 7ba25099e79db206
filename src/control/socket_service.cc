#include "control/socket_service.h"

#include <sys/eventfd.h>
#include <unistd.h>
#include <zmq.h>

#include <cerrno>
#include <cstring>

#include "base/log.h"
#include "control/zap.h"

namespace millrace {
namespace {

constexpr int kIdleWaitMs = 60'000;  // changes wake the thread; this only bounds what a lost wake-up could cost

}  // namespace

// The context is shut down by now: a zmq_poll() with a socket of it ends with ETERM, and wake() ends one that has only
// the eventfd. zmq_ctx_term() comes later and waits for every socket that is not closed here.
SocketService::~SocketService() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) {
    wake();
    thread_.join();
  }
  // A socket may move between threads with a full fence between (zmq_socket(3)): the lock and the join are such fences.
  for (Watched& never_seen : added_) zmq_close(never_seen.socket);
  if (wake_fd_ >= 0) ::close(wake_fd_);
}

Status SocketService::start() {
  // The first socket starts the thread: a context without keys and monitors needs none.
  if (thread_.joinable()) return ok_status();
  wake_fd_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_fd_ < 0) return internal_error("no eventfd for the control plane: {}", std::strerror(errno));
  thread_ = std::thread([this] { run(); });
  return ok_status();
}

void SocketService::wake() const {
  const uint64_t one = 1;
  // A counter that is full is readable anyway.
  if (::write(wake_fd_, &one, sizeof one) < 0 && errno != EAGAIN) LOG_ERROR("cannot wake the control plane's thread");
}

Status SocketService::add_socket(void* socket, std::function<bool(void* socket)> on_readable) {
  CHECK(socket != nullptr && on_readable);
  std::lock_guard lock(mutex_);
  if (watched_ >= kMaxWatched) {
    return error(StatusCode::kResourceExhausted, "{} sockets are watched; wanted at most {}", watched_, kMaxWatched);
  }
  RETURN_IF_ERROR(start());
  ++watched_;
  added_.push_back({socket, std::move(on_readable)});
  wake();
  return ok_status();
}

Status SocketService::authenticate() {
  // A second caller returns when the handler is bound, not before.
  std::lock_guard authenticating(authenticating_);
  {
    std::lock_guard lock(mutex_);
    if (authenticates_) return ok_status();
    authenticates_ = true;
  }
  // Without the lock, as add_socket() takes it. ZAP allows one handler in a context (RFC 27), so the flag is set first
  // and a second caller binds none.
  Result<void*> handler = open_zap_handler(context_);
  Status status = handler.ok() ? add_socket(*handler, answer_zap) : handler.status();
  if (status.ok()) return status;
  if (handler.ok()) zmq_close(*handler);
  std::lock_guard lock(mutex_);
  authenticates_ = false;
  return status;
}

void SocketService::take_added(std::vector<Watched>& live) {
  std::lock_guard lock(mutex_);
  for (Watched& added : added_) live.push_back(std::move(added));
  added_.clear();
}

// False when the context has ended.
bool SocketService::wait_and_serve(std::vector<Watched>& live) {
  std::vector<zmq_pollitem_t> items{{nullptr, wake_fd_, ZMQ_POLLIN, 0}};
  for (const Watched& watched : live) items.push_back({watched.socket, 0, ZMQ_POLLIN, 0});
  // Without the lock: add_socket() writes to the eventfd to end it.
  if (zmq_poll(items.data(), static_cast<int>(items.size()), kIdleWaitMs) < 0) return zmq_errno() == EINTR;
  if (items[0].revents != 0) {
    uint64_t wakes = 0;
    [[maybe_unused]] const auto drained = ::read(wake_fd_, &wakes, sizeof wakes);
  }
  for (std::size_t i = 0; i < live.size(); ++i) {
    if (items[i + 1].revents == 0 || live[i].on_readable(live[i].socket)) continue;
    zmq_close(live[i].socket);
    live[i].socket = nullptr;
  }
  const std::size_t closed = std::erase_if(live, [](const Watched& watched) { return watched.socket == nullptr; });
  std::lock_guard lock(mutex_);
  CHECK(closed <= watched_);
  watched_ -= closed;
  return !stopping_;
}

void SocketService::run() {
  std::vector<Watched> live;
  do {
    take_added(live);
  } while (wait_and_serve(live));
  for (Watched& watched : live) zmq_close(watched.socket);
}

}  // namespace millrace
