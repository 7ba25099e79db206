#include "http/unix_socket.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace millrace::http {
namespace {

// Whether a process listens at `address`. A full backlog listens too.
bool is_listened_at(const sockaddr_un& address) {
  const int probe = ::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (probe < 0) return true;
  const bool connected = ::connect(probe, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  const bool listened = connected || errno != ECONNREFUSED;
  ::close(probe);
  return listened;
}

// Removes what stands at `path` of a new socket, which exists as `found`.
Status remove_stale(const std::string& path, const sockaddr_un& address, const struct stat& found) {
  if (!S_ISSOCK(found.st_mode)) {
    return invalid_argument("{} exists and is not a socket; wanted a path for a new one (--uds)", path);
  }
  if (is_listened_at(address)) {
    return error(StatusCode::kUnavailable, "another process listens on {}; stop it or choose another path (--uds)",
                 path);
  }
  if (::unlink(path.c_str()) == 0) return ok_status();
  return invalid_argument("cannot remove the old socket {}: {}", path, std::strerror(errno));
}

}  // namespace

bool UnixSocketFile::identify(const std::string& path, Identity& out) {
  struct statx info {};
  if (::statx(AT_FDCWD, path.c_str(), AT_SYMLINK_NOFOLLOW, STATX_INO | STATX_BTIME, &info) != 0) return false;
  out = {info.stx_ino, info.stx_btime.tv_sec, info.stx_dev_major, info.stx_dev_minor, info.stx_btime.tv_nsec};
  return true;
}

Status UnixSocketFile::bind(int socket, const std::string& path) {
  CHECK(path_.empty());
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) {
    return invalid_argument("the path of a Unix socket has {} bytes; wanted 1 to {} (--uds)", path.size(),
                            sizeof address.sun_path - 1);
  }
  path.copy(address.sun_path, path.size());
  struct stat info {};
  if (::lstat(path.c_str(), &info) == 0) RETURN_IF_ERROR(remove_stale(path, address, info));
  if (::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return invalid_argument("cannot listen on {}: {}; wanted a path in a folder of this user (--uds)", path,
                            std::strerror(errno));
  }
  // No client can connect before listen(), so the mode is in force in time. umask() would hold for every thread's
  // files.
  if (::chmod(path.c_str(), S_IRUSR | S_IWUSR) != 0 || !identify(path, identity_)) {
    const int why = errno;
    ::unlink(path.c_str());
    return invalid_argument("cannot set the mode of {}: {}", path, std::strerror(why));
  }
  path_ = path;
  return ok_status();
}

void UnixSocketFile::remove() {
  if (path_.empty()) return;
  Identity now;
  if (identify(path_, now) && now == identity_) ::unlink(path_.c_str());
  path_.clear();
}

}  // namespace millrace::http
