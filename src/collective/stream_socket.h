// StreamSocket: one TCP connection whose reads and writes end at a WaitLimit.
//
// Owner: its holder; movable. Thread safety: one thread.
#pragma once

#include <cstddef>
#include <span>

#include "collective/cancel_signal.h"
#include "collective/socket_address.h"

namespace millrace::collective {

class StreamSocket {
 public:
  StreamSocket() = default;
  explicit StreamSocket(int fd);  // closes it in the end; makes it non-blocking
  ~StreamSocket();
  StreamSocket(StreamSocket&& other) noexcept;
  StreamSocket& operator=(StreamSocket&& other) noexcept;

  int fd() const { return fd_; }
  bool open() const { return fd_ >= 0; }

  // kUnavailable: the peer closed the connection, or it broke.
  Status read_all(std::span<std::byte> out, const WaitLimit& limit);
  Result<std::size_t> read_some(std::span<std::byte> out, const WaitLimit& limit);  // at least one byte
  Status write_all(std::span<const std::byte> bytes, const WaitLimit& limit);

 private:
  int fd_ = -1;
};

// kUnavailable: refused or unreachable.
Result<StreamSocket> connect_to(const SocketAddress& address, const WaitLimit& limit);

}  // namespace millrace::collective
