// Acceptor: the writer's end of the sockets. It lets readers of our own user in, hands each the memory, and notices
// when one is gone.
//
// A reader sends Hello within silent_ms, is answered, and sends nothing more. If it does, it is counted (bad_frames)
// and not listened to again, but its connection stays: as long as it lives it may hold bytes, and only EPOLLHUP shows
// that it does not.
//
// Owner: the shared-memory relay (shm_relay.cc), whose table, writer and poller it refers to.
// Thread safety: the relay's loop alone, after make().
#pragma once

#include <functional>
#include <memory>
#include <unordered_map>

#include "base/status.h"
#include "relay/shm/poller.h"
#include "relay/shm/socket.h"
#include "relay/shm/writer.h"

namespace millrace::shm {

inline constexpr int kAcceptPauseMs = 100;  // after we ran out of descriptors
inline constexpr int kMaxAcceptsAtOnce = 64;

class Acceptor {
 public:
  static constexpr uint64_t kListenerId = 1;

  // `next_id` gives ids that nothing else in the poller has.
  static Result<std::unique_ptr<Acceptor>> make(const RelayOptions& options, const InstanceId& self, OpTable& table,
                                                Writer& writer, Poller& poller, std::function<uint64_t()> next_id);
  // False: the event is not ours.
  bool on_event(const Poller::Event& event);
  // What is due; in how many ms something is due next, or -1.
  int64_t tick(int64_t now_ms);
  void close();

 private:
  struct Caller {
    Fd socket;
    bool welcomed = false;
    int64_t due_ms = 0;  // for its Hello
  };

  Acceptor(const RelayOptions& options, const InstanceId& self, OpTable& table, Writer& writer, Poller& poller,
           std::function<uint64_t()> next_id)
      : silent_ms_(options.silent_ms),
        self_(self),
        table_(table),
        writer_(writer),
        poller_(poller),
        next_id_(std::move(next_id)) {}
  void accept_all();
  void on_hello(uint64_t id, Caller& caller);
  bool understood(const Packet& packet, const Hello& hello, Refusal& why) const;
  void refuse(uint64_t id, const Caller& caller, Refusal why);
  void drop(uint64_t id);

  const int silent_ms_;
  const InstanceId self_;
  OpTable& table_;
  Writer& writer_;
  Poller& poller_;
  const std::function<uint64_t()> next_id_;
  Fd listener_;
  Fd bell_;  // of all readers
  int64_t paused_until_ms_ = 0;
  std::unordered_map<uint64_t, Caller> callers_;
};

}  // namespace millrace::shm
