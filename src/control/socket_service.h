// SocketService: one thread of a ZmqContext that reads sockets which no other thread uses.
//
// A watched socket belongs to the thread from add_socket() on. Its callback reads without waiting and returns whether
// to go on; on false, or when the context ends, the thread closes the socket and drops the callback. Callbacks must be
// short and must not call into the service: ZeroMQ's own i/o threads wait for the readers of their monitors.
//
// Owner: its ZmqContext. Thread safety: add_socket() and authenticate() from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/status.h"

namespace millrace {

inline constexpr std::size_t kMaxWatched = 4096;  // sockets of one context

class SocketService {
 public:
  explicit SocketService(void* zmq_context) : context_(zmq_context) {}
  ~SocketService();  // the context was shut down before
  SocketService(const SocketService&) = delete;
  SocketService& operator=(const SocketService&) = delete;

  // on_readable(socket) is called on the service's thread whenever there is something to receive. kResourceExhausted
  // over kMaxWatched; then the socket stays the caller's.
  Status add_socket(void* socket, std::function<bool(void* socket)> on_readable);

  // Answers who may connect by CURVE, from now on, for every socket of the context (control/zap.h). Idempotent.
  Status authenticate();

 private:
  struct Watched {
    void* socket;
    std::function<bool(void* socket)> on_readable;
  };
  Status start();  // with the lock held
  void wake() const;
  void run();
  void take_added(std::vector<Watched>& live);
  bool wait_and_serve(std::vector<Watched>& live);

  void* const context_;
  std::mutex authenticating_;  // before mutex_
  std::mutex mutex_;
  std::vector<Watched> added_;  // not yet seen by the thread
  std::size_t watched_ = 0;     // those, and the thread's
  bool authenticates_ = false;
  bool stopping_ = false;
  int wake_fd_ = -1;
  std::thread thread_;
};

}  // namespace millrace
