#include "collective/gloo_listener.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iterator>

#include "collective/limits.h"
#include "collective/little_endian.h"

namespace millrace::collective {
Result<GlooListener> GlooListener::open(const SocketAddress& local, int backlog) {
  GlooListener out;
  ASSIGN_OR_RETURN(const int fd, listen_at(local, backlog, out.address_));
  out.listener_ = StreamSocket(fd);
  return out;
}

// All that wait: a connection that sends nothing must not keep those behind it in the kernel's queue. Over `most` the
// oldest is closed, after a look whether it has named its pair meanwhile: the ranks that connect to this one may all
// have come before the first call.
Status GlooListener::accept_all(std::size_t most, Expected& expected, std::vector<StreamSocket>& out) {
  while (true) {
    const int fd = accept4(listener_.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    // An error, as without a descriptor no rank can be taken and the mesh would only wait for its limit. What else
    // accept4() reports is of the one connection, or that there is none.
    if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)) {
      return error(StatusCode::kUnavailable, "accept: {}", std::strerror(errno));
    }
    if (fd < 0) return ok_status();
    if (pending_.size() >= most) {
      (void)settle(pending_.front(), expected, out);
      pending_.pop_front();
    }
    pending_.push_back({.socket = StreamSocket(fd)});
  }
}

GlooListener::Progress GlooListener::advance(Pending& pending) {
  while (pending.received < pending.id.size()) {
    const ssize_t count =
        recv(pending.socket.fd(), pending.id.data() + pending.received, pending.id.size() - pending.received, 0);
    if (count > 0) {
      pending.received += static_cast<std::size_t>(count);
    } else if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      return Progress::kWaits;
    } else if (count == 0 || errno != EINTR) {
      // Closed before it named its pair: a port scan, or a rank that died. The rank may come again.
      return Progress::kBroken;
    }
  }
  return Progress::kComplete;
}

// True: nothing more is wanted of the connection. If it named a pair, its socket is in `out`; else it is to be closed.
bool GlooListener::settle(Pending& pending, Expected& expected, std::vector<StreamSocket>& out) {
  const Progress progress = advance(pending);
  if (progress != Progress::kComplete) return progress == Progress::kBroken;
  // As it is in memory: gloo writes the pair's number so, and all its hosts are little-endian.
  int64_t id = 0;
  std::memcpy(&id, pending.id.data(), sizeof(id));
  // A number that nothing expects, or that was used already, closes the connection: no second one takes a rank's slot.
  if (const auto pair = expected.find(id); pair != expected.end()) {
    out[static_cast<std::size_t>(pair->second)] = std::move(pending.socket);
    expected.erase(pair);
  }
  return true;
}

Status GlooListener::accept_pairs(Expected expected, std::vector<StreamSocket>& out, const WaitLimit& limit) {
  for (const auto& [id, rank] : expected) CHECK(rank >= 0 && static_cast<std::size_t>(rank) < out.size());
  // Every rank may have connected and not written yet.
  const std::size_t most = kMaxPendingConnections + expected.size();
  while (!expected.empty()) {
    std::vector<int> fds{listener_.fd()};
    for (const Pending& pending : pending_) fds.push_back(pending.socket.fd());
    if (const Status status = wait_for_any(fds, POLLIN, limit); !status.ok()) {
      return status.with_prefix(fmt::format("rank {} has not connected", expected.begin()->second));
    }
    RETURN_IF_ERROR(accept_all(most, expected, out));
    for (auto it = pending_.begin(); it != pending_.end();) {
      it = settle(*it, expected, out) ? pending_.erase(it) : std::next(it);  // what remains in it is closed
    }
  }
  return ok_status();
}

// PyTorch 1.13 sends no number: which rank it is follows from the listener that it came to, and from its host.
Result<StreamSocket> GlooListener::accept_from(const SocketAddress& peer, const WaitLimit& limit) {
  std::string closed;  // the last host whose connection was closed
  while (true) {
    if (const Status status = wait_for(listener_.fd(), POLLIN, limit); !status.ok()) {
      return status.with_prefix(
          fmt::format("nothing came from {}{}", peer.host(), closed.empty() ? "" : ", but from " + closed));
    }
    SocketAddress from;
    from.size = sizeof(from.storage);
    const int fd =
        accept4(listener_.fd(), reinterpret_cast<sockaddr*>(&from.storage), &from.size, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0 && (errno == EMFILE || errno == ENFILE)) {
      return error(StatusCode::kUnavailable, "accept: {}", std::strerror(errno));
    }
    if (fd < 0) continue;
    StreamSocket socket(fd);
    // A host has many loopback addresses, and connects from another one than it listens at.
    if ((from.loopback() && peer.loopback()) || from.host() == peer.host()) return socket;
    closed = from.host();
  }
}

}  // namespace millrace::collective
