// KvEventStream: a scheduler's KvEvents as messages on an EventSocket, in the form that vLLM and SGLang publish and
// that their routers read.
//
// The topic is kKvTopic. The payload is one msgpack array
//   [timestamp, [event, ...], dp_rank, weight_version]
// with the seconds since 1970 as a double, and events as arrays
//   ["BlockStored", [hash], parent hash or nil, [token, ...], block size, lora id (nil), medium]
//   ["BlockRemoved", [hash, ...], medium]
//   ["AllBlocksCleared"]
// Hashes are signed 64-bit numbers (kv/kv_event.h); the medium is "pool" or "host". A gap in the sequence numbers means
// that events were lost, or that the scheduler has started anew, and that a listener knows nothing any more. Before its
// first event a stream has an AllBlocksCleared, for listeners that look at no numbers.
//
// Owner: the worker `generate`. Thread safety: one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "control/event_socket.h"
#include "kv/kv_event.h"
#include "wire/messages.h"

namespace millrace {

inline constexpr char kKvTopic[] = "kv-events";
inline constexpr std::size_t kMaxEventsPerMessage = 512;

// One payload of events that share a weight version.
std::string encode_kv_events(const KvEvent* events, std::size_t count, double timestamp, uint32_t dp_rank);

class KvEventStream {
 public:
  // `context`: of the socket, where no other object keeps it.
  KvEventStream(std::unique_ptr<EventSocket> socket, uint32_t dp_rank, std::shared_ptr<ZmqContext> context = nullptr)
      : context_(std::move(context)), socket_(std::move(socket)), dp_rank_(dp_rank) {}

  void publish(const KvEvents& events);
  void describe(std::vector<wire::Metric>& metrics) const;

 private:
  std::shared_ptr<ZmqContext> context_;  // outlives the socket
  std::unique_ptr<EventSocket> socket_;
  const uint32_t dp_rank_;
  bool begun_ = false;
  uint64_t published_ = 0, dropped_ = 0;  // events
};

}  // namespace millrace
