// Writer: the puts of a UCX relay, and the readers that get them.
//
// A put whose bytes are few, or whose pool is full, is sent by message, straight from its parts; else it was copied
// into the pool (put() does that, on its caller's thread), where a reader on the same host takes it.
//
// Thread safety: put() and ended() from any thread, everything else on the link's thread. Owner: the relay's core.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "relay/descriptor.h"
#include "relay/op_table.h"
#include "relay/ucx/layout.h"
#include "relay/ucx/link.h"
#include "relay/ucx/pool.h"

namespace millrace::ucx {

inline constexpr std::size_t kPoolFromBytes = 8u << 10;  // fewer go by message: no second trip, nothing to map
inline constexpr int kSegmentsAtOnce = 4;                // on their way to one reader

// What peers are called in PutRequest::destination.
std::string relay_address(const InstanceId& id);

class Writer {
 public:
  // `pool` is null where no memory is shared with others.
  Writer(OpTable& table, Link& link, Pool* pool, bool checksum)
      : table_(table), link_(link), pool_(pool), checksum_(checksum) {}

  // Of an op that is open and pinned. The descriptor for its readers.
  std::string put(RelayOp op);
  bool ended(RelayOp op, const Status& status);  // true: nobody reads its bytes
  void on_get(Peer& peer, const Frame& frame);
  void on_release(Peer& peer, const Frame& frame);
  void on_gone(Peer& peer);

 private:
  struct Put {
    RelayOp op;
    uint64_t generation = 0;
    std::vector<std::size_t> sizes;
    std::vector<Segment> segments;
    uint64_t sizes_hash = 0;
    std::shared_ptr<const PutRequest> request;
    bool pooled = false;             // it had a slot from the beginning
    std::optional<Pool::Slot> slot;  // under the mutex
    int begun = 0;                   // readers; the thread's, as the next two
    int over = 0;                    // readers
    Status worst;                    // how they ended
    int sending = 0;                 // under the mutex
    bool ended = false;              // under the mutex
  };
  // One reader of one put.
  struct Serve {
    std::shared_ptr<Put> put;
    std::size_t next = 0;  // segment
    int sending = 0;
    uint64_t id = 0;  // unlike (peer, get), never the same again
  };
  using Key = std::pair<Peer*, uint64_t>;
  using Serves = std::map<Key, Serve>;

  Status check(const Peer& peer, const Frame& frame, const std::shared_ptr<Put>& put) const;
  void copy_to_pool(Put& put);
  void refuse(Peer& peer, uint64_t get, const Status& why);
  void offer_slot(Peer& peer, uint64_t get, const Put& put);
  void send_some(const Key& key);
  bool send_segment(const Key& key, Serve& serve);
  void sent(const Key& key, uint64_t id, const std::shared_ptr<Put>& put);
  void close_serve(Serves::iterator at, const Status& status);
  void tell_readers(RelayOp op, const Status& status);
  void free_bytes(Put& put);

  OpTable& table_;
  Link& link_;
  Pool* const pool_;
  const bool checksum_;
  std::mutex mutex_;
  std::unordered_map<uint64_t, std::shared_ptr<Put>> puts_;  // open ones
  uint64_t next_generation_ = 1;
  Serves serves_;
  uint64_t next_serve_ = 1;
};

}  // namespace millrace::ucx
