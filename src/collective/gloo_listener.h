// GlooListener: takes the connections of those ranks that connect to this one, and finds out which rank each is.
//
// PyTorch 2: one listener; a connection begins with the 8 bytes that name its pair. They are random and known only to
// processes that can read the store, so a connection without them is dropped, and one that sends nothing holds up no
// other. Owner: the mesh while it connects. Thread safety: one thread.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "collective/stream_socket.h"

namespace millrace::collective {

class GlooListener {
 public:
  using Expected = std::map<int64_t, int>;  // a pair's number to its rank

  // Listens at `local`, whose port is 0.
  static Result<GlooListener> open(const SocketAddress& local, int backlog);

  const SocketAddress& address() const { return address_; }
  // Waits for one connection of each pair in `expected` and stores it in `out[rank]`.
  Status accept_pairs(Expected expected, std::vector<StreamSocket>& out, const WaitLimit& limit);
  // The first connection from the host of `peer`: PyTorch 1.13 has a listener for each pair, and its connections name
  // no rank. Those of other hosts are closed.
  Result<StreamSocket> accept_from(const SocketAddress& peer, const WaitLimit& limit);

 private:
  struct Pending {
    StreamSocket socket;
    std::array<std::byte, 8> id{};
    std::size_t received = 0;
  };
  enum class Progress { kWaits, kComplete, kBroken };

  Status accept_all(std::size_t most, Expected& expected, std::vector<StreamSocket>& out);
  static bool settle(Pending& pending, Expected& expected, std::vector<StreamSocket>& out);
  static Progress advance(Pending& pending);

  StreamSocket listener_;
  SocketAddress address_;
  std::deque<Pending> pending_;
};

}  // namespace millrace::collective
