// SocketService: one thread of a ZmqContext that reads sockets which no other thread uses.
//
// A watched socket belongs to the thread from add_socket() on. Its callback reads without waiting and returns whether
// to go on; on false, or when the context ends, the thread closes the socket and drops the callback. Callbacks must be
// short and must not call into the service: ZeroMQ's own i/o threads wait for the readers of their monitors.
//
// Thread safety: add_socket() and remove_socket() from any thread.
#pragma once

#include <atomic>
#include <condition_variable>
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

  // on_readable(socket) is called on the service's thread whenever there is something to receive. The token is for
  // remove_socket(). kResourceExhausted over kMaxWatched; then the socket stays the caller's.
  Result<uint64_t> add_socket(void* socket, std::function<bool(void* socket)> on_readable);
  // Waits until the callback is gone for good; nothing where it is already.
  void remove_socket(uint64_t token);

  // Answers who may connect by CURVE, from now on, for every socket of the context (control/zap.h). Idempotent.
  Status authenticate();

 private:
  struct Watched {
    uint64_t token;
    void* socket;
    std::function<bool(void* socket)> on_readable;
  };
  Status start();  // with the lock held
  void wake() const;
  void run();
  void apply_changes(std::vector<Watched>& live);
  bool wait_and_serve(std::vector<Watched>& live);

  void* const context_;
  std::mutex mutex_;
  std::condition_variable gone_;
  std::vector<Watched> added_;     // not yet seen by the thread
  std::vector<uint64_t> removed_;  // wanted gone
  std::vector<uint64_t> known_;    // every token that is added or live
  uint64_t next_token_ = 1;
  bool authenticates_ = false;
  bool stopping_ = false;
  int wake_fd_ = -1;
  std::thread thread_;
};

}  // namespace millrace
