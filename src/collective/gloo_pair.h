// GlooPair: the connection to one other rank, and what that rank has announced on it.
//
// Owner: the group. Thread safety: one thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "collective/gloo_message.h"
#include "collective/stream_socket.h"

namespace millrace::collective {

class GlooPair {
 public:
  GlooPair(int rank, StreamSocket socket) : rank_(rank), socket_(std::move(socket)) {}

  Status send(const Preamble& preamble, const WaitLimit& limit);
  // Waits until the peer asks for `length` bytes of `slot`.
  Status await_receiver(uint64_t slot, uint64_t length, const WaitLimit& limit);
  // Waits until the bytes of `slot` begin; read them from socket(). A peer that announces another length is refused.
  Status await_data(uint64_t slot, uint64_t length, const WaitLimit& limit);

  StreamSocket& socket() { return socket_; }
  int rank() const { return rank_; }

 private:
  Result<Preamble> read(const WaitLimit& limit);
  Status note(const Preamble& preamble);
  Status name_peer(const Status& status, uint64_t slot) const;

  int rank_;
  StreamSocket socket_;
  std::map<uint64_t, uint64_t> receivers_;  // slot to length: the peer asked before its turn came
  std::map<uint64_t, uint64_t> announced_;  // the peer has these to send
};

}  // namespace millrace::collective
