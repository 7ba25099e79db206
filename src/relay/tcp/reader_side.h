// ReaderSide: the gets of a TCP relay. For each writer it has a few connections; a get asks on them for ranges of the
// put, kRangesInFlight on each at a time, and what comes is received straight into its memory.
//
//   waiting (for memory, then for a connection) -> fetching -> complete: RELEASE, done
//
// A connection that breaks gives its ranges back; what came of them in whole, checked frames is kept. Each get survives
// one such break. A frame with a wrong checksum ends its get with kInternal. A writer that is silent, cannot be reached
// or is another instance ends all its gets with kUnavailable.
//
// The memory of all gets that brought none is pool_bytes together; who does not fit waits its turn.
//
// Thread safety: the I/O thread alone. Owner: the relay.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "relay/op_table.h"
#include "relay/tcp/address.h"
#include "relay/tcp/connection_set.h"
#include "relay/tcp/handshake.h"
#include "relay/tcp/receive_pool.h"

namespace millrace::tcp {

// What get() found out before it handed the get over.
struct GetOrder {
  RelayOp op;  // of the get: its ticket
  InstanceAddress writer;
  uint64_t put = 0;  // the op of the put
  uint64_t generation = 0;
  uint64_t sizes_hash = 0;
  uint64_t total = 0;
};

class ReaderSide : public FrameUser {
 public:
  ReaderSide(IoLoop& loop, OpTable& table, const RelayOptions& options);
  ~ReaderSide() override;

  void open(const Identity& self) { self_ = self; }
  void start(const GetOrder& order);
  void get_ended(RelayOp op, StatusCode code);
  void flush();
  int64_t check_time(int64_t now_ms);
  void clear();

  Status on_control(Connection& c, const Header& header, std::span<const std::byte> payload) override;
  Status data_begin(Connection& c, const Header& header) override;
  std::size_t data_space(Connection& c, std::span<iovec> out) override;
  void data_received(Connection& c, std::size_t bytes) override;
  Status data_end(Connection& c, uint64_t sum) override;
  bool next_data(Connection& c, OutgoingFrame& frame) override;
  Status on_connected(Connection& c) override;
  bool busy(const Connection& c) const override;
  void on_lost(Connection& c, const Status& why) override;

 private:
  struct Range {
    uint64_t offset = 0;
    uint64_t end = 0;
    bool empty_put = false;  // the one range of a put without bytes
  };
  struct Peer;
  struct Get {
    GetOrder order;
    Peer* peer = nullptr;
    PartMap into;
    std::vector<SharedBytes> parts;  // as `done` gets them
    std::size_t memory = 0;          // of the pool
    uint64_t next = 0;               // asked for so far
    std::vector<Range> again;        // given back by connections that broke
    uint64_t received = 0;
    int breaks = 0;
  };
  struct Peer {
    std::string key;
    InstanceAddress address;
    std::vector<uint64_t> connections;
    std::map<uint64_t, Get*> gets;  // by ticket
    int64_t retry_ms = 0;           // not 0: when to connect again
  };
  struct Flight {  // one range that was asked for on a connection
    uint64_t ticket = 0;
    Range range;  // what has not come yet
  };
  struct Fetching {  // of one connection
    Peer* peer = nullptr;
    std::vector<Flight> flights;
    Header frame;          // the DATA frame that comes in
    uint64_t have = 0;     // of it
    bool discard = false;  // its get is over
    bool pinned = false;
    std::unique_ptr<Hasher> hasher = std::make_unique<Hasher>();
  };

  bool prepare(Get& get);
  void start_waiting();
  Peer& peer_of(const InstanceAddress& address);
  void ensure_connections(Peer& peer, std::size_t wanted);
  Status connect(Peer& peer);
  void assign(Peer& peer);
  bool assign_one(Get& get);
  std::optional<Range> next_range(Get& get);
  Status ask(Connection& c, Fetching& fetching, Get& get, const Range& range);
  Status broken(Get& get, const Status& why);
  void complete(Get& get);
  void drop(uint64_t ticket, StatusCode code);
  void send_release(const Get& get, StatusCode code);
  void fail_peer(Peer& peer, const Status& why);
  void retry_or_fail(Peer& peer, const std::vector<uint64_t>& tickets, const Status& why);
  void tidy(Peer& peer);
  Get* find(uint64_t ticket);

  OpTable& table_;
  const RelayOptions options_;
  Identity self_;
  ReceivePool pool_;
  std::size_t memory_ = 0;  // of open gets
  std::unordered_map<uint64_t, std::unique_ptr<Get>> gets_;
  std::deque<uint64_t> waiting_;  // tickets
  std::map<std::string, std::unique_ptr<Peer>> peers_;
  std::unordered_map<uint64_t, Fetching> fetching_;
  bool room_ = false;  // somebody may go on, as something is over or new
  std::vector<std::byte> scratch_;
  ConnectionSet connections_;
};

}  // namespace millrace::tcp
