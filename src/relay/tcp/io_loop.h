// IoLoop: the one thread of a TCP relay that waits: for sockets, for work that other threads hand over, for time.
//
// Each turn: wait (a little awake where events come quickly, see relay/spin.h, then by epoll) -> the sockets' callbacks
// -> what was posted -> turn_end(), which does what is due and says when something is due next. Callbacks may add and
// remove sockets, also their own; a callback of a socket that was removed earlier in the same turn is not called.
//
// Thread safety: post(), wake_by() and stop() from any thread; everything else on the loop's own thread, or before
// start(). Owner: the relay.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "relay/spin.h"

namespace millrace::tcp {

class IoLoop {
 public:
  using Events = std::function<void(uint32_t events)>;  // EPOLLIN and so on
  using TurnEnd =
      std::function<int64_t(int64_t now_ms)>;  // when it wants the next turn, at the latest; INT64_MAX: never

  IoLoop() = default;
  ~IoLoop();  // stops
  IoLoop(const IoLoop&) = delete;
  IoLoop& operator=(const IoLoop&) = delete;

  Status open();
  void start(TurnEnd turn_end);
  // The thread ends after this turn; what was posted and not run is dropped. Not from the loop's own thread.
  void stop();

  // The descriptor stays its owner's. Returns an id; none is used twice.
  Result<uint64_t> add(int fd, uint32_t events, Events callback);
  void modify(uint64_t id, uint32_t events);
  void remove(uint64_t id);

  void post(std::function<void()> work);
  // Makes sure that there is a turn at due_ms or earlier. Costs nothing where there is one anyway.
  void wake_by(int64_t due_ms);

 private:
  struct Watched {
    int fd = -1;
    std::shared_ptr<Events> callback;
  };

  void run();
  bool turn(int64_t timeout_ms);  // whether there was anything to do
  void wake();

  int epoll_ = -1;
  int wake_fd_ = -1;
  std::thread thread_;
  TurnEnd turn_end_;
  std::unordered_map<uint64_t, Watched> watched_;
  uint64_t next_id_ = 1;
  std::atomic<int64_t> due_ms_{0};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> asleep_{false};   // who posts must wake it
  std::atomic<bool> pending_{false};  // something is posted
  std::mutex mutex_;
  std::vector<std::function<void()>> posted_;
};

}  // namespace millrace::tcp
