// PeerGate: whose messages a stage loop takes: those of its coordinator's session, and of incarnations that the table
// of peers has. Messages of another session or of a dead incarnation are ignored and counted. Those of an incarnation
// that the table does not have yet are parked: a table that lists it usually follows within milliseconds; after kParkMs
// they are dropped.
//
// Bounded by kMaxParked and kMaxParkedBytes: the oldest are dropped. Owner: a StageLoop. Thread safety: the loop's
// thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>

#include "stages/loop/context.h"
#include "stages/loop/lease.h"

namespace millrace::loop {

class PeerGate {
 public:
  PeerGate(LoopContext& context, Lease& lease) : context_(context), lease_(lease) {}

  enum class Sender : uint8_t { kAccepted, kUnknownYet, kIgnored };
  Sender check_coordinator(const wire::Origin& from);
  Sender check_peer(const wire::Origin& from);

  // One whose sender is kUnknownYet.
  void park(wire::Message message, std::size_t size_bytes);
  // Dispatches what is parked; what parks again keeps its time.
  void unpark(const std::function<void(wire::Message)>& dispatch);
  void expire();
  void clear();
  std::size_t parked() const { return parked_.size(); }
  int64_t due_ms() const { return parked_.empty() ? kNoWake : parked_.front().until_ms; }

 private:
  struct Parked {
    wire::Message message;
    int64_t until_ms = 0;
    std::size_t size_bytes = 0;
  };
  void drop_oldest();

  LoopContext& context_;
  Lease& lease_;
  std::deque<Parked> parked_;
  std::size_t parked_bytes_ = 0;
};

// What a message takes while it is parked, about.
std::size_t parked_size(const wire::ChunkBatch& batch);

}  // namespace millrace::loop
