// Every limit of the HTTP server, with its default and the status a client sees above it.
//
// Thread safety: a value, read-only after the server has started.
#pragma once

#include <chrono>
#include <cstddef>

namespace millrace::http {

// Of one connection, accepted by the kernel and not sent (TCP_NOTSENT_LOWAT). Without it a send buffer grows to
// megabytes and counts as full until a third of it is free.
inline constexpr int kUnsentBytesInKernel = 128 << 10;

struct Limits {
  std::size_t head_bytes = 32 << 10;         // request line and header fields: 431
  std::size_t header_count = 100;            // 431
  std::size_t target_bytes = 8192;           // 414
  std::size_t body_bytes = 32 << 20;         // 413
  std::size_t bodies_bytes = 512 << 20;      // of all requests whose handler has not returned: 503 above
  std::size_t inline_body_bytes = 64 << 10;  // above: the handler runs on the bodies thread (server.h)
  std::size_t read_ahead_bytes = 64 << 10;   // received but not yet consumed (pipelined requests, body), per connection
  std::size_t max_pending_bytes = 4 << 20;   // unsent stream bytes of one slow reader: aborted above
  std::size_t unsent_bytes = 256 << 20;      // the same of all together: above, one with more than its share is aborted
  std::size_t unsent_share_bytes = 64 << 10;
  std::size_t discard_bytes = 64 << 10;  // body of a refused request read away to keep the connection; else close
  std::size_t connections = 8192;        // then the oldest idle one ends; else accepting pauses
  std::chrono::milliseconds header_timeout{10'000};       // first byte of a request to the end of its head: 408
  std::chrono::milliseconds body_idle_timeout{30'000};    // between two body reads: 408
  std::chrono::milliseconds body_total_timeout{600'000};  // whole body: 408
  std::chrono::milliseconds keep_alive_timeout{75'000};   // idle between requests: closed silently
  std::chrono::milliseconds write_stall_timeout{60'000};  // a client that takes no byte: aborted
  // A stream of events that was silent for so long gets a comment, so that no proxy takes it for a dead one; 0: none.
  std::chrono::milliseconds event_stream_ping{15'000};
  // Of WebSockets.
  std::size_t websocket_message_bytes = 8 << 20;  // of one message that a client sends: closed with 1009
  std::size_t websocket_unread_bytes = 64 << 10;  // of messages to a client besides streams: above, none of its is read
  std::chrono::milliseconds websocket_idle_timeout{600'000};  // without a message of the client: closed with 1001
  std::chrono::milliseconds linger_timeout{1'000};  // reading away what a refused client still sends before closing
};

}  // namespace millrace::http
