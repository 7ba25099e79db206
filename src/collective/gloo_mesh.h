// Connects a rank with all others of its group, as gloo does: every pair of ranks has one connection. The addresses are
// exchanged through the store, and of two ranks the one with the greater address connects.
//
// Thread safety: a free function for one thread; it waits for the other ranks until the limit.
#pragma once

#include <string>
#include <vector>

#include "collective/stream_socket.h"
#include "collective/tcp_store_client.h"

namespace millrace::collective {

struct MeshOptions {
  const AllowedHosts& allowed;
  int rank = 1;
  int world_size = 2;
  std::string group;  // as the trainer names it
};

// By rank; that of the rank itself is not open.
Result<std::vector<StreamSocket>> connect_mesh(TcpStoreClient& store, const MeshOptions& options,
                                               const WaitLimit& limit);

}  // namespace millrace::collective
