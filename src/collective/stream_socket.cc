#include "collective/stream_socket.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace millrace::collective {
namespace {

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK; }

Status broken(const char* call) {
  return error(StatusCode::kUnavailable, "the connection broke ({}: {})", call, std::strerror(errno));
}

}  // namespace

StreamSocket::StreamSocket(int fd) : fd_(fd) {
  if (fd_ < 0) return;
  fcntl(fd_, F_SETFL, fcntl(fd_, F_GETFL) | O_NONBLOCK);
  // The messages of both protocols are small and wait for each other.
  const int on = 1;
  setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

StreamSocket::~StreamSocket() {
  if (fd_ >= 0) close(fd_);
}

StreamSocket::StreamSocket(StreamSocket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

// The old socket goes with `other`, and is closed when that is.
StreamSocket& StreamSocket::operator=(StreamSocket&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

Result<std::size_t> StreamSocket::read_some(std::span<std::byte> out, const WaitLimit& limit) {
  // recv() of nothing returns 0, which would look like the end of the stream.
  CHECK(!out.empty());
  while (true) {
    RETURN_IF_ERROR(limit.check());
    const ssize_t count = recv(fd_, out.data(), out.size(), 0);
    if (count > 0) return static_cast<std::size_t>(count);
    if (count == 0) return error(StatusCode::kUnavailable, "the peer closed the connection");
    if (errno == EINTR) continue;
    if (!would_block()) return broken("recv");
    RETURN_IF_ERROR(wait_for(fd_, POLLIN, limit));
  }
}

Status StreamSocket::read_all(std::span<std::byte> out, const WaitLimit& limit) {
  while (!out.empty()) {
    ASSIGN_OR_RETURN(const std::size_t count, read_some(out, limit));
    out = out.subspan(count);
  }
  return ok_status();
}

Status StreamSocket::write_all(std::span<const std::byte> bytes, const WaitLimit& limit) {
  while (!bytes.empty()) {
    RETURN_IF_ERROR(limit.check());
    const ssize_t count = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count >= 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(count));
    } else if (would_block()) {
      RETURN_IF_ERROR(wait_for(fd_, POLLOUT, limit));
    } else if (errno != EINTR) {
      return broken("send");
    }
  }
  return ok_status();
}

Result<StreamSocket> connect_to(const SocketAddress& address, const WaitLimit& limit) {
  const auto refused = [&](int why) {
    return error(StatusCode::kUnavailable, "cannot connect to {}: {}", address.to_string(), std::strerror(why));
  };
  StreamSocket out(socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!out.open()) return refused(errno);
  if (connect(out.fd(), reinterpret_cast<const sockaddr*>(&address.storage), address.size) == 0) return out;
  if (errno != EINPROGRESS) return refused(errno);
  // connect(2): writable once it is over, and SO_ERROR has the outcome.
  RETURN_IF_ERROR(wait_for(out.fd(), POLLOUT, limit));
  int why = 0;
  socklen_t size = sizeof(why);
  if (getsockopt(out.fd(), SOL_SOCKET, SO_ERROR, &why, &size) != 0) why = errno;
  if (why != 0) return refused(why);
  return out;
}

}  // namespace millrace::collective
