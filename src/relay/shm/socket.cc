#include "relay/shm/socket.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

namespace millrace::shm {
namespace {

constexpr std::string_view kPrefix = "shm:";
// At most net.core.somaxconn, to which the kernel cuts it (listen(2)). A full queue costs a reader one more try, see
// connect_to().
constexpr int kBacklog = 128;
constexpr int kMaxFds = 8;  // space for; what is more the kernel drops

struct Name {
  sockaddr_un address{};
  socklen_t size = 0;
};

// unix(7): an abstract name is the bytes behind sun_path[0] == 0, as many as the size states, and no zero ends it. So
// the size must be exact: with sizeof(sockaddr_un) the zeros behind the text would be a part of the name.
Name abstract_name(const InstanceId& id) {
  Name name;
  name.address.sun_family = AF_UNIX;
  const std::string text = "millrace-shm-" + to_hex(id);  // behind a zero byte: abstract
  CHECK(text.size() < sizeof name.address.sun_path);
  std::memcpy(name.address.sun_path + 1, text.data(), text.size());
  name.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  return name;
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

Result<Fd> make_socket() {
  Fd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (socket.valid()) return socket;
  return error(StatusCode::kResourceExhausted, "shm relay: cannot make a socket: {}", std::strerror(errno));
}

}  // namespace

std::string address_of(const InstanceId& id) { return std::string(kPrefix) + to_hex(id); }

Result<InstanceId> parse_address(std::string_view address) {
  InstanceId id;
  const bool fits = address.size() == kPrefix.size() + 2 * id.random.size() && address.starts_with(kPrefix);
  for (std::size_t i = 0; fits && i < id.random.size(); ++i) {
    const int high = hex_digit(address[kPrefix.size() + 2 * i]);
    const int low = hex_digit(address[kPrefix.size() + 2 * i + 1]);
    if (high < 0 || low < 0) return invalid_argument("shm relay: an address has bad hexadecimal digits");
    id.random[i] = static_cast<uint8_t>(high * 16 + low);
  }
  if (!fits) return invalid_argument("shm relay: an address of {} bytes; wanted shm: and 32 digits", address.size());
  return id;
}

Result<Fd> listen_at(const InstanceId& id) {
  ASSIGN_OR_RETURN(Fd socket, make_socket());
  const Name name = abstract_name(id);
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&name.address), name.size) != 0 ||
      ::listen(socket.get(), kBacklog) != 0) {
    return error(StatusCode::kUnavailable, "shm relay: cannot listen: {}", std::strerror(errno));
  }
  return socket;
}

Fd accept_one(const Fd& listener, int& code) {
  Fd socket(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  // Not 0 only for what lasts, such as EMFILE: the caller then pauses, as the listener stays readable.
  code = socket.valid() || errno == EAGAIN || errno == ECONNABORTED || errno == EINTR ? 0 : errno;
  return socket;
}

Result<Fd> connect_to(const InstanceId& id) {
  ASSIGN_OR_RETURN(Fd socket, make_socket());
  const Name name = abstract_name(id);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&name.address), name.size) != 0) {
    // connect(2): for a non-blocking UNIX socket EAGAIN is a full queue, never "in progress": the connection is made at
    // once or not at all. The Fetcher tries again after kConnectRetryMs.
    if (errno == EAGAIN || errno == EINTR) {
      return error(StatusCode::kResourceExhausted, "shm relay: {} does not accept now", address_of(id));
    }
    return error(StatusCode::kUnavailable, "shm relay: no process is at {}: {}", address_of(id), std::strerror(errno));
  }
  // The name may be another user's: abstract names have no permissions, and the first process that binds one has it.
  RETURN_IF_ERROR(check_peer(socket));
  return socket;
}

Status check_peer(const Fd& socket) {
  // unix(7), SO_PEERCRED: of the process that called connect(), or listen() for the one that connects. The kernel keeps
  // what it was then, so a peer cannot change it.
  ucred who{};
  socklen_t size = sizeof who;
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &who, &size) != 0) {
    return error(StatusCode::kPermissionDenied, "shm relay: a peer without credentials: {}", std::strerror(errno));
  }
  if (who.uid == ::geteuid()) return ok_status();
  return error(StatusCode::kPermissionDenied, "shm relay: a peer of user {}; wanted {}", who.uid, ::geteuid());
}

Packet receive(const Fd& socket, std::span<std::byte> into, bool takes_fds) {
  iovec block{into.data(), into.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFds * sizeof(int))];
  msghdr header{};
  header.msg_iov = &block;
  header.msg_iovlen = 1;
  header.msg_control = takes_fds ? control : nullptr;  // without space the kernel closes what was sent along
  header.msg_controllen = takes_fds ? sizeof control : 0;
  // With MSG_TRUNC the size is that of the packet, though it is cut to `into`: so a packet that is too long differs
  // from one that fits. With MSG_CMSG_CLOEXEC no child that is started meanwhile inherits the descriptors.
  const ssize_t got = ::recvmsg(socket.get(), &header, MSG_CMSG_CLOEXEC | MSG_TRUNC);
  Packet packet;
  // Taken over whatever the packet is: from here on they are this process's, and a refused packet closes them.
  for (cmsghdr* c = takes_fds && got >= 0 ? CMSG_FIRSTHDR(&header) : nullptr; c; c = CMSG_NXTHDR(&header, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    // What the kernel stored, also where it cut the list to kMaxFds (MSG_CTRUNC).
    const std::size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof fd);
      packet.fds.emplace_back(fd);
    }
  }
  if (got < 0) {
    packet.kind = errno == EAGAIN || errno == EINTR ? Packet::Kind::kNothing : Packet::Kind::kEnd;
  } else {
    // recvmsg() returns 0 for an empty packet as for the end of the connection; no message of ours is empty.
    packet.kind = got == 0 ? Packet::Kind::kEnd : Packet::Kind::kMessage;
    packet.bytes = static_cast<std::size_t>(got);
  }
  return packet;
}

bool send(const Fd& socket, std::span<const std::byte> message, std::span<const int> fds) {
  iovec block{const_cast<std::byte*>(message.data()), message.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFds * sizeof(int))] = {};
  msghdr header{};
  header.msg_iov = &block;
  header.msg_iovlen = 1;
  if (!fds.empty()) {
    CHECK(fds.size() <= kMaxFds);
    header.msg_control = control;
    header.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* c = CMSG_FIRSTHDR(&header);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(c), fds.data(), fds.size_bytes());
  }
  // A packet is sent in whole or not at all (SOCK_SEQPACKET). The descriptors are duplicated into the message: the
  // caller may close its own at once.
  return ::sendmsg(socket.get(), &header, MSG_NOSIGNAL) == static_cast<ssize_t>(message.size());
}

}  // namespace millrace::shm
