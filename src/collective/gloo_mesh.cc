#include "collective/gloo_mesh.h"

#include <unistd.h>

#include <map>
#include <memory>
#include <random>
#include <utility>

#include "collective/gloo_listener.h"
#include "collective/gloo_record.h"
#include "collective/limits.h"
#include "collective/little_endian.h"

namespace millrace::collective {
namespace {

std::string host_name() {
  char name[256] = "";
  if (gethostname(name, sizeof(name) - 1) != 0) return "localhost";
  return name;
}

// Keys begin with the group's name, twice, and in version 2 with the device after it; "0" is its first gloo context.
std::string key_prefix(StoreDialect dialect, const std::string& group) {
  return fmt::format("/{0}/{0}/{1}0/", group, dialect == StoreDialect::kTorch2 ? "/cpu//" : "");
}

// 63 bits, as -1 stands for "no number" in gloo's addresses.
int64_t random_id() {
  std::random_device random;
  return static_cast<int64_t>((static_cast<uint64_t>(random()) << 32 | random()) >> 1);
}

// What both versions of the protocol need, and the sockets as they come.
struct Mesh {
  TcpStoreClient& store;
  const MeshOptions& options;
  const WaitLimit& limit;
  std::string prefix;
  std::vector<StreamSocket> sockets;

  Result<std::string> value_of(int rank) { return store.get(prefix + std::to_string(rank), limit); }
  Status publish(std::string_view value) { return store.set(prefix + std::to_string(options.rank), value, limit); }
  Result<RankRecord> record_of(int rank) {
    ASSIGN_OR_RETURN(const std::string value, value_of(rank));
    return decode_rank_record(value, options.world_size);
  }
  Result<SocketAddress> address_of(int rank) {
    ASSIGN_OR_RETURN(const std::string value, value_of(rank));
    return decode_address_list(value, options.world_size, rank, options.rank);
  }
  StreamSocket& socket(int rank) { return sockets[static_cast<std::size_t>(rank)]; }
};

// Any rank but this one publishes without having waited for it: its address names the family and the interface.
int first_peer(const MeshOptions& options) { return options.rank == 0 ? 1 : 0; }

Status connect_torch2(Mesh& mesh) {
  const MeshOptions& options = mesh.options;
  ASSIGN_OR_RETURN(const RankRecord first, mesh.record_of(first_peer(options)));
  ASSIGN_OR_RETURN(const SocketAddress local, local_address_towards(first.listener));
  ASSIGN_OR_RETURN(GlooListener listener, GlooListener::open(local, options.world_size));
  // The listener first: a peer may connect as soon as the record is in the store.
  RankRecord self{host_name(), listener.address(), {}};
  for (int rank = 0; rank < options.world_size; ++rank) self.pair_ids.push_back(random_id());
  RETURN_IF_ERROR(mesh.publish(encode_rank_record(self)));

  std::map<int64_t, int> expected;
  for (int rank = 0; rank < options.world_size; ++rank) {
    if (rank == options.rank) continue;
    // Waits until the rank has published. All ranks publish before they wait for each other, so this ends.
    ASSIGN_OR_RETURN(const RankRecord peer, mesh.record_of(rank));
    ASSIGN_OR_RETURN(const bool connects, connects_to(self.listener, peer.listener));
    if (!connects) {
      expected[self.pair_ids[static_cast<std::size_t>(rank)]] = rank;
      continue;
    }
    // The store is the trainer's, and so are the addresses in it.
    RETURN_IF_ERROR(options.allowed.check(peer.listener));
    ASSIGN_OR_RETURN(mesh.socket(rank), connect_to(peer.listener, mesh.limit));
    std::string id;
    // The number that the peer has chosen for this rank: it expects it, see accept_pairs().
    append_int(id, peer.pair_ids[static_cast<std::size_t>(options.rank)]);
    RETURN_IF_ERROR(mesh.socket(rank).write_all(bytes_of(id), mesh.limit));
  }
  // Behind all connects: the kernel's queue, of world_size, keeps those that come meanwhile.
  return listener.accept_pairs(std::move(expected), mesh.sockets, mesh.limit);
}

// The listeners of PyTorch 1.13, one for each other rank.
Result<std::vector<GlooListener>> open_listeners(Mesh& mesh) {
  ASSIGN_OR_RETURN(const SocketAddress first, mesh.address_of(first_peer(mesh.options)));
  ASSIGN_OR_RETURN(const SocketAddress local, local_address_towards(first));
  std::vector<GlooListener> listeners;
  for (int rank = 0; rank < mesh.options.world_size; ++rank) {
    if (rank == mesh.options.rank) {
      listeners.emplace_back();
      continue;
    }
    ASSIGN_OR_RETURN(GlooListener listener, GlooListener::open(local, 1));
    listeners.push_back(std::move(listener));
  }
  return listeners;
}

Status connect_torch1(Mesh& mesh) {
  const MeshOptions& options = mesh.options;
  // Ranks above this one wait for its host's name before they publish their addresses.
  const std::string name_key = fmt::format("{}rank_{}", mesh.prefix, options.rank);
  RETURN_IF_ERROR(mesh.store.set(name_key, host_name(), mesh.limit));
  ASSIGN_OR_RETURN(std::vector<GlooListener> listeners, open_listeners(mesh));
  std::vector<SocketAddress> addresses;
  for (int rank = 0; rank < options.world_size; ++rank) {
    if (rank != options.rank) addresses.push_back(listeners[static_cast<std::size_t>(rank)].address());
  }
  RETURN_IF_ERROR(mesh.publish(encode_address_list(addresses)));

  std::vector<std::pair<int, SocketAddress>> expected;
  for (int rank = 0; rank < options.world_size; ++rank) {
    if (rank == options.rank) continue;
    ASSIGN_OR_RETURN(const SocketAddress peer, mesh.address_of(rank));
    ASSIGN_OR_RETURN(const bool connects, connects_to(listeners[static_cast<std::size_t>(rank)].address(), peer));
    if (!connects) {
      expected.emplace_back(rank, peer);
      continue;
    }
    RETURN_IF_ERROR(options.allowed.check(peer));
    ASSIGN_OR_RETURN(mesh.socket(rank), connect_to(peer, mesh.limit));
  }
  for (const auto& [rank, peer] : expected) {
    Result<StreamSocket> socket = listeners[static_cast<std::size_t>(rank)].accept_from(peer, mesh.limit);
    if (!socket.ok()) return socket.status().with_prefix(fmt::format("rank {} has not connected", rank));
    mesh.socket(rank) = std::move(*socket);
  }
  return ok_status();
}

}  // namespace

Result<std::vector<StreamSocket>> connect_mesh(TcpStoreClient& store, const MeshOptions& options,
                                               const WaitLimit& limit) {
  CHECK(options.world_size <= kMaxWorldSize && options.rank >= 0 && options.rank < options.world_size);
  Mesh mesh{store, options, limit, key_prefix(store.dialect(), options.group), {}};
  mesh.sockets.resize(static_cast<std::size_t>(options.world_size));
  RETURN_IF_ERROR(store.dialect() == StoreDialect::kTorch2 ? connect_torch2(mesh) : connect_torch1(mesh));
  return std::move(mesh.sockets);
}

}  // namespace millrace::collective
