// EventSocket: publishes to any listener, over a ZeroMQ PUB socket. No listener is needed, and one that is too slow
// loses messages, never holds anything up: each message carries a sequence number, and a gap in them is a loss.
//
// One message is three frames: the topic, the sequence number (8 bytes, big-endian), the payload. The first number is
// that of the microseconds since 1970: above all that a process before this one has sent, so that its listeners, whose
// sockets connect again by themselves, see a gap.
// Endpoints are "ipc:///path" and "tcp://127.0.0.1:5557" (control/endpoint.h); an address that other machines reach
// only where that is asked for: its listeners are other people's programs, which have no key of ours.
//
// Owner: a KvEventStream. Thread safety: one thread. zmq.h is included by the .cc alone.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "control/zmq_socket.h"

namespace millrace {

inline constexpr int kEventHighWater = 8192;  // messages kept for one slow listener; then it loses the next ones

// kInvalidArgument, with the endpoint and what is wanted, for anything else than the above.
Status check_event_endpoint(const std::string& endpoint, bool anywhere);
// That of the n-th of several equal publishers: a port that is larger by n, or a path that ends with "-n". The first is
// the endpoint itself.
std::string nth_endpoint(const std::string& endpoint, int n);

class EventSocket {
 public:
  // kInvalidArgument for the endpoint, kUnavailable where it cannot be bound (it is in use).
  static Result<std::unique_ptr<EventSocket>> bind(ZmqContext& context, const std::string& endpoint, bool anywhere);
  EventSocket(const EventSocket&) = delete;
  EventSocket& operator=(const EventSocket&) = delete;

  void publish(std::string_view topic, std::string_view payload);
  // Events were lost before they came here: listeners see a gap.
  void skip() { ++sequence_; }
  uint64_t sequence() const { return sequence_; }  // of the next message

 private:
  explicit EventSocket(Socket socket);
  Socket socket_;
  uint64_t sequence_;
};

}  // namespace millrace
