// ClientWindow: acknowledges to the terminals how many chunks of each request its sink has taken. A terminal has at
// most a window of unacknowledged chunks and bytes under way (wire/limits.h), so nothing grows. A sink of values or
// audio that answers kFull slows its own request down; a sink of text always takes, and HTTP bounds what its client has
// not read (max_pending_bytes in http/limits.h).
//
// A window that is half used is acknowledged with the step, anything less after kClientAckMs. An acknowledgement may be
// lost, so the last one is repeated, after kAckRepeatMs and then at doubled intervals, until the stream is closed.
//
// Owner: Delivery. Thread safety: none.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "wire/messages.h"

namespace millrace {

inline constexpr int64_t kClientAckMs = 100;
inline constexpr int64_t kAckRepeatMs = 500;

class ClientWindow {
 public:
  // On a failure the acknowledgements are sent with the next step.
  using Send = std::function<Status(std::size_t slot, std::vector<wire::Ack> acks)>;

  explicit ClientWindow(Send send) : send_(std::move(send)) {}

  // Its Submit has left: from now on the replica is asked, with a count of 0 while nothing has come.
  void open(ReqId id, std::size_t slot, int64_t now_ms);
  // The sink has taken so much more of what this replica streams.
  void on_taken(ReqId id, std::size_t slot, uint64_t chunks, std::size_t bytes, int64_t now_ms);
  // The stream has ended: it needs no acknowledgement any more.
  void close(ReqId id, std::size_t slot);
  void erase(ReqId id);
  void on_lost(std::size_t slot) { unsent_.erase(slot); }
  void tick(int64_t now_ms);
  // At the end of a step: one message for each replica, of at most wire::kMaxBatchEntries requests.
  void send();

 private:
  struct Stream {
    std::size_t slot = 0;
    uint64_t taken = 0;
    uint64_t acked = 0;
    std::size_t unacked_bytes = 0;
    int64_t repeat_after_ms = 0;
    int64_t repeat_at_ms = 0;
  };

  Stream& stream_of(ReqId id, std::size_t slot);
  void acknowledge(ReqId id, Stream& stream, int64_t now_ms);

  const Send send_;
  std::unordered_map<ReqId, std::vector<Stream>> streams_;    // one for each terminal, nearly always one
  std::map<std::size_t, std::map<ReqId, wire::Ack>> unsent_;  // by slot
  int64_t next_round_ms_ = 0;
};

}  // namespace millrace
