// Fetcher: the reader's end: connections to writers, the gets that wait for one, and copies into spans of the caller's.
//
// Where the writer is connected, a get is served inside the call: it takes a hold and hands out the mapped bytes. The
// first get from a writer waits until the loop has connected. A get with destinations of more than kInlineCopyBytes is
// copied by the loop, kCopySliceBytes at a time, so that the relay's other work goes on and a cancelled get stops.
//
// A get that took its hold counts as one of the put's readers, however it ends then. One that failed before does not.
//
// Owner: the shared-memory relay (shm_relay.cc), whose table and poller it refers to.
// Thread safety: get() and monitor() from any thread; the rest is the loop's. `gone` is called by the loop, without a
// lock.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/status.h"
#include "relay/op_table.h"
#include "relay/shm/channel.h"
#include "relay/shm/poller.h"
#include "relay/shm/socket.h"
#include "wire/limits.h"

namespace millrace::shm {

inline constexpr std::size_t kInlineCopyBytes = std::size_t{64} << 10;
inline constexpr std::size_t kCopySliceBytes = std::size_t{1} << 20;
inline constexpr std::size_t kMaxLinks = wire::kMaxPeers;  // writers that one reader is connected with
inline constexpr int kConnectRetryMs = 10;                 // while a writer's queue of callers is full

class Fetcher {
 public:
  // `gone`: a peer that was watched, or got from, cannot be reached, or not any more.
  Fetcher(const RelayOptions& options, const InstanceId& self, OpTable& table, Poller& poller,
          std::function<uint64_t()> next_id, std::function<void(const InstanceId&)> gone);

  Result<RelayOp> get(GetRequest request);
  // Connects, so that `gone` reports its end.
  void monitor(const InstanceId& peer);

  bool on_event(const Poller::Event& event);
  int64_t tick(int64_t now_ms);
  // One slice of one copy. True: there is more to do.
  bool copy_slice();
  void close();

 private:
  using Key = std::array<uint8_t, 16>;
  struct Waiting {
    RelayOp op;
    Descriptor descriptor;
  };
  struct Link {
    uint64_t id = 0;  // 0: not connected yet
    InstanceId peer;
    Fd socket;                         // until the channel has it
    std::shared_ptr<Channel> channel;  // ready
    int64_t due_ms = 0;                // for being ready
    std::vector<Waiting> waiting;
  };
  struct Job {
    RelayOp op;
    std::shared_ptr<const GetRequest> request;
    std::shared_ptr<Channel> channel;
    Channel::Claim claim;
    std::vector<SharedBytes> parts;
    std::size_t part = 0;
    std::size_t at = 0;  // inside the part
  };

  Link* link_to(const InstanceId& peer);  // made where there is none; null: too many. Under the lock.
  Link* link_with(uint64_t id);
  void serve(RelayOp op, const Descriptor& descriptor, const std::shared_ptr<Channel>& channel);
  bool copy(Job& job, std::size_t most) const;  // true: all is copied
  void finish(Job& job);
  Status connect(Link& link);
  Status answered(Link& link);  // by its Welcome: OK, and ready
  void serve_waiting(Link& link);
  void fail(const InstanceId& peer, const Status& why);

  const int connect_timeout_ms_;
  const InstanceId self_;
  const uint64_t self_hash_;
  OpTable& table_;
  Poller& poller_;
  const std::function<uint64_t()> next_id_;
  const std::function<void(const InstanceId&)> gone_;

  mutable std::mutex mutex_;
  std::map<Key, Link> links_;  // only the loop takes one out, or changes more of one than `waiting`
  std::deque<Job> jobs_;
};

}  // namespace millrace::shm
