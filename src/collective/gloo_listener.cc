#include "collective/gloo_listener.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "collective/limits.h"
#include "collective/little_endian.h"

namespace millrace::collective {
Result<GlooListener> GlooListener::open(const SocketAddress& local, int backlog) {
  GlooListener out;
  ASSIGN_OR_RETURN(const int fd, listen_at(local, backlog, out.address_));
  out.listener_ = StreamSocket(fd);
  return out;
}

// All that wait: a connection that sends nothing must not keep those behind it in the kernel's queue. Over
// kMaxPendingConnections the oldest is closed.
Status GlooListener::accept_all() {
  while (true) {
    const int fd = accept4(listener_.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    // An error, as without a descriptor no rank can be taken and the mesh would only wait for its limit. What else
    // accept4() reports is of the one connection, or that there is none.
    if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)) {
      return error(StatusCode::kUnavailable, "accept: {}", std::strerror(errno));
    }
    if (fd < 0) return ok_status();
    if (pending_.size() == kMaxPendingConnections) pending_.pop_front();
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

Status GlooListener::accept_pairs(std::map<int64_t, int> expected, std::vector<StreamSocket>& out,
                                  const WaitLimit& limit) {
  for (const auto& [id, rank] : expected) CHECK(rank >= 0 && static_cast<std::size_t>(rank) < out.size());
  while (!expected.empty()) {
    std::vector<int> fds{listener_.fd()};
    for (const Pending& pending : pending_) fds.push_back(pending.socket.fd());
    if (const Status status = wait_for_any(fds, POLLIN, limit); !status.ok()) {
      return status.with_prefix(fmt::format("rank {} has not connected", expected.begin()->second));
    }
    RETURN_IF_ERROR(accept_all());
    for (auto it = pending_.begin(); it != pending_.end();) {
      const Progress progress = advance(*it);
      if (progress == Progress::kWaits) {
        ++it;
        continue;
      }
      if (progress == Progress::kComplete) {
        // As it is in memory: gloo writes the pair's number so, and all its hosts are little-endian.
        int64_t id = 0;
        std::memcpy(&id, it->id.data(), sizeof(id));
        // A number that nothing expects, or that was used already, closes the connection: no second one takes a rank's
        // slot.
        if (const auto pair = expected.find(id); pair != expected.end()) {
          out[static_cast<std::size_t>(pair->second)] = std::move(it->socket);
          expected.erase(pair);
        }
      }
      it = pending_.erase(it);  // what remains in it is closed
    }
  }
  return ok_status();
}

// PyTorch 1.13 sends no number: which rank it is follows from the listener that it came to.
Result<StreamSocket> GlooListener::accept_first(const WaitLimit& limit) {
  while (true) {
    RETURN_IF_ERROR(wait_for(listener_.fd(), POLLIN, limit));
    const int fd = accept4(listener_.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) return StreamSocket(fd);
    if (errno == EMFILE || errno == ENFILE) return error(StatusCode::kUnavailable, "accept: {}", std::strerror(errno));
  }
}

}  // namespace millrace::collective
