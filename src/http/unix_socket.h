// The file of a Unix socket that a server listens on: bound with mode 0600, so that only this user (and root) connects,
// and removed at the end.
//
// Thread safety: none; owned by one server.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace millrace::http {

class UnixSocketFile {
 public:
  UnixSocketFile() = default;
  ~UnixSocketFile() { remove(); }
  UnixSocketFile(const UnixSocketFile&) = delete;
  UnixSocketFile& operator=(const UnixSocketFile&) = delete;

  // Binds the descriptor `socket`, an AF_UNIX stream socket that does not listen yet, to `path`, with mode 0600 before
  // a client can connect. A socket that a dead process left there is replaced. kInvalidArgument for a path that is too
  // long, is something else than a socket or cannot be bound; kUnavailable where a process listens there.
  Status bind(int socket, const std::string& path);
  // Removes the file, if it is still the one that bind() made.
  void remove();

 private:
  // Which file it is: an inode's number alone is given again when its file is gone.
  struct Identity {
    uint64_t inode = 0;
    int64_t born_s = 0;
    uint32_t device_major = 0, device_minor = 0, born_ns = 0;
    friend bool operator==(const Identity&, const Identity&) = default;
  };
  static bool identify(const std::string& path, Identity& out);

  std::string path_;  // empty: nothing is bound
  Identity identity_;
};

}  // namespace millrace::http
