// Loop: the one thread of a relay on which its session and its channel run: it waits for descriptors, for work that
// other threads post, and for time.
//
// Each turn: the channel's poll() -> wait (awake for a short time where events come quickly, see relay/spin.h, then in
// epoll) -> the descriptors' callbacks -> what was posted -> turn_end(), which does what is due and returns when
// something is due next. Callbacks may add and remove descriptors, also their own; a callback of a descriptor that was
// removed earlier in the same turn is not called.
//
// Owner: Core. Thread safety: post() and wake_by() from any thread; everything else on the thread that runs run(), or
// before it.
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

namespace millrace::session {

class LoopUser {
 public:
  virtual ~LoopUser() = default;
  virtual bool running() = 0;  // asked before each turn
  virtual bool poll() = 0;     // whether there was anything to do
  virtual bool may_sleep() = 0;
  virtual int64_t nap_us() const = 0;            // the longest wait that poll() allows; -1: any
  virtual int64_t turn_end(int64_t now_ms) = 0;  // when it wants the next turn, at the latest; INT64_MAX: never
};

class Loop {
 public:
  using Events = std::function<void(uint32_t events)>;  // EPOLLIN and so on

  Loop() = default;
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  Status open();
  void run(LoopUser& user);  // until user.running() is false

  // The descriptor stays its owner's. Returns an id; none is used twice.
  Result<uint64_t> add(int fd, uint32_t events, Events callback);
  // A descriptor that only ends the wait: poll() finds out why.
  Status add_wakeup(int fd);
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

  bool turn(LoopUser& user, int64_t timeout_us);  // whether there was anything to do
  int wait(int64_t timeout_us);
  void wake();

  int epoll_ = -1;
  int wake_fd_ = -1;
  std::unordered_map<uint64_t, Watched> watched_;
  uint64_t next_id_ = 1;
  // A call from another thread would change what wait() goes through. No id: run() has not begun, or is over.
  bool on_its_thread() const {
    const std::thread::id runs = thread_.load(std::memory_order_relaxed);
    return runs == std::thread::id() || runs == std::this_thread::get_id();
  }

  std::atomic<std::thread::id> thread_{};  // of run()
  std::atomic<int64_t> due_ms_{0};
  std::atomic<bool> asleep_{false};   // a post must wake it
  std::atomic<bool> pending_{false};  // something is posted
  std::mutex mutex_;
  std::vector<std::function<void()>> posted_;
};

}  // namespace millrace::session
