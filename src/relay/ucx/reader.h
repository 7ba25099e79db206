// Reader: the gets of a UCX relay, from the request to the writer's bytes in their place.
//
// Bytes come by message, segment by segment, or are copied out of the writer's pool, a piece at a time, so that the
// thread hears its peers in between. Into a caller's memory nothing is written unless the get is pinned; memory of the
// relay's own lives as long as UCX writes to it, also when the get has ended.
//
// Thread safety: ended() from any thread, everything else on the link's thread. Owner: the relay's core.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "relay/descriptor.h"
#include "relay/op_table.h"
#include "relay/ucx/layout.h"
#include "relay/ucx/link.h"

namespace millrace::ucx {

class Reader {
 public:
  Reader(OpTable& table, Link& link) : table_(table), link_(link) {}

  void start(RelayOp op, const Descriptor& descriptor);
  void ended(RelayOp op, StatusCode code);
  void on_open(Peer& peer);
  void on_gone(Peer& peer, const Status& why);
  void on_data(Peer& peer, const Frame& frame, const Payload& payload);
  void on_slot(Peer& peer, const Frame& frame, const Payload& payload);
  void on_refuse(Peer& peer, const Frame& frame, const Payload& payload);
  void on_released(Peer& peer, const Frame& frame);
  bool copy_some();  // out of pools; whether there was something to copy

 private:
  struct Get {
    RelayOp op;
    Peer* peer = nullptr;  // null: gone, or it ended
    Descriptor descriptor;
    std::shared_ptr<const GetRequest> request;
    std::vector<Segment> segments;
    std::vector<bool> asked_for;  // of the segments: it came, or is coming
    std::size_t left = 0;         // segments
    Layout layout;
    std::shared_ptr<std::byte> memory;  // of all parts, where there are no destinations
    int taking = 0;                     // receives that UCX works on
    bool by_message = false;            // the pool was tried
    bool unproved = false;              // bytes came by rendezvous and without a checksum
    bool proving = false;               // all bytes are here; the writer's word is awaited
    const std::byte* slot = nullptr;    // where it is copied from,
    uint64_t arena = 0;                 // which stays mapped as long
    std::size_t part = 0;               // how far it was copied
    std::size_t offset = 0;
  };
  using Gets = std::unordered_map<uint64_t, std::unique_ptr<Get>>;

  Get* find(Peer& peer, const Frame& frame);  // of an open get that was asked of this peer, or null
  bool direct(const Get& get) const { return !get.request->destination.empty(); }
  bool prepare(Get& get);  // the memory; false: the get has ended
  std::byte* part(Get& get, std::size_t index);
  void ask(Get& get);
  void took(uint64_t op, std::size_t segment, const Frame& frame, const std::byte* at, bool whole);
  void scatter(Get& get, const Segment& segment, const std::byte* from);
  void release(Get& get, StatusCode code, uint8_t flags = 0);
  void whole(Get& get);    // all bytes are there
  void succeed(Get& get);  // and are what was put
  void fail(Get& get, Status why);
  void detach(Get& get);  // from its peer; the record goes when UCX is done with it
  bool copy_piece(Get& get);

  OpTable& table_;
  Link& link_;
  Gets gets_;
  std::deque<uint64_t> copying_;
};

}  // namespace millrace::ucx
