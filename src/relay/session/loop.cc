#include "relay/session/loop.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "relay/op_table.h"
#include "relay/spin.h"

namespace millrace::session {
namespace {

constexpr uint64_t kWakeId = 0;                 // the eventfd: its counter is read
constexpr uint64_t kWakeupOnlyId = UINT64_MAX;  // of add_wakeup()
constexpr std::size_t kEventsPerTurn = 64;
constexpr int64_t kMaxSleepUs = 1'000'000;  // while anything is due

}  // namespace

Loop::~Loop() {
  if (epoll_ >= 0) close(epoll_);
  if (wake_fd_ >= 0) close(wake_fd_);
}

Status Loop::open() {
  CHECK(epoll_ < 0 && wake_fd_ < 0);
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  wake_fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  epoll_event event{.events = EPOLLIN, .data = {.u64 = kWakeId}};
  if (epoll_ < 0 || wake_fd_ < 0 || epoll_ctl(epoll_, EPOLL_CTL_ADD, wake_fd_, &event) != 0) {
    return error(StatusCode::kUnavailable, "the relay cannot wait for events: {}", std::strerror(errno));
  }
  return ok_status();
}

Result<uint64_t> Loop::add(int fd, uint32_t events, Events callback) {
  CHECK(on_its_thread());
  const uint64_t id = next_id_++;
  epoll_event event{.events = events, .data = {.u64 = id}};
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) != 0) {
    return error(StatusCode::kUnavailable, "the relay cannot wait for a socket: {}", std::strerror(errno));
  }
  // Shared, as a callback may remove itself while it runs, see wait().
  watched_[id] = {fd, std::make_shared<Events>(std::move(callback))};
  return id;
}

Status Loop::add_wakeup(int fd) {
  epoll_event event{.events = EPOLLIN, .data = {.u64 = kWakeupOnlyId}};
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) == 0) return ok_status();
  return error(StatusCode::kUnavailable, "the relay cannot wait for its transport: {}", std::strerror(errno));
}

void Loop::modify(uint64_t id, uint32_t events) {
  CHECK(on_its_thread());
  const auto it = watched_.find(id);
  if (it == watched_.end()) return;
  epoll_event event{.events = events, .data = {.u64 = id}};
  CHECK(epoll_ctl(epoll_, EPOLL_CTL_MOD, it->second.fd, &event) == 0);
}

void Loop::remove(uint64_t id) {
  CHECK(on_its_thread());
  const auto it = watched_.find(id);
  if (it == watched_.end()) return;
  // The events of this turn that are still to come name an id, not a descriptor: they find nothing.
  epoll_ctl(epoll_, EPOLL_CTL_DEL, it->second.fd, nullptr);
  watched_.erase(it);
}

void Loop::wake() {
  const uint64_t one = 1;
  // A full counter wakes as well: nothing is lost where the write fails.
  [[maybe_unused]] const ssize_t written = write(wake_fd_, &one, sizeof(one));
}

void Loop::post(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    posted_.push_back(std::move(work));
  }
  // The loop does it the other way round (asleep, then a look), so one of the two sees the other.
  pending_.store(true);
  if (asleep_.exchange(false)) wake();
}

void Loop::wake_by(int64_t due_ms) {
  // Enough without a lock: the op is open already. Either turn_end(), which run() calls after it has stored INT64_MAX,
  // finds it, or this call reads INT64_MAX or the new time.
  if (due_ms < due_ms_.load()) wake();
}

int Loop::wait(int64_t timeout_us) {
  std::array<epoll_event, kEventsPerTurn> events;
  if (timeout_us > 0 && timeout_us % 1000 != 0) {
    // epoll_wait() counts in ms; a nap of the channel's is shorter.
    pollfd any{epoll_, POLLIN, 0};
    const timespec nap{timeout_us / 1'000'000, timeout_us % 1'000'000 * 1000};
    (void)ppoll(&any, 1, &nap, nullptr);
    timeout_us = 0;
  }
  const int timeout_ms = timeout_us < 0 ? -1 : static_cast<int>(timeout_us / 1000);
  // EINTR gives -1, and so no events; run() goes round.
  const int count = epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), timeout_ms);
  asleep_.store(false);
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = events[static_cast<std::size_t>(i)];
    if (event.data.u64 == kWakeId) {
      uint64_t counter = 0;
      [[maybe_unused]] const ssize_t got = read(wake_fd_, &counter, sizeof(counter));
      continue;
    }
    const auto it = watched_.find(event.data.u64);
    if (it == watched_.end()) continue;                            // removed earlier in this turn
    const std::shared_ptr<Events> callback = it->second.callback;  // it may remove itself
    (*callback)(event.events);
  }
  return count;
}

bool Loop::turn(LoopUser& user, int64_t timeout_us) {
  bool any = user.poll();
  // Before the look at pending_: post() stores pending_ first and looks at asleep_ then. Both are sequentially
  // consistent, so a post either is seen here or writes to the eventfd.
  if (timeout_us != 0) asleep_.store(true);
  if (any || pending_.load() || (timeout_us != 0 && !user.may_sleep())) timeout_us = 0;
  // Without descriptors of its own a channel is polled, and a look at them would only cost a call.
  if (timeout_us != 0 || !watched_.empty()) any = wait(timeout_us) > 0 || any;
  asleep_.store(false);
  // Before the swap: what is posted after it sets the flag again, and at worst the next turn finds an empty list.
  if (!pending_.exchange(false)) return any;
  std::vector<std::function<void()>> work;
  {
    const std::lock_guard lock(mutex_);
    work.swap(posted_);
  }
  // Without the mutex: the work posts more, which the next turn runs.
  for (const auto& one : work) one();
  return true;
}

void Loop::run(LoopUser& user) {
  CHECK(epoll_ >= 0 && thread_.exchange(std::this_thread::get_id()) == std::thread::id());
  Spin spin;
  int64_t timeout_us = 0;
  while (user.running()) {
    // A look without waiting first, so that spinning begins only where nothing is there.
    bool any = timeout_us != 0 && turn(user, 0);
    while (!any && timeout_us != 0 && user.running() && spin.again()) any = turn(user, 0);
    if (any || turn(user, timeout_us)) spin.happened();
    due_ms_.store(INT64_MAX);  // a wake_by() from here on wakes, as turn_end() may have looked already
    const int64_t due_ms = user.turn_end(monotonic_ms());
    due_ms_.store(due_ms);
    timeout_us = due_ms == INT64_MAX ? -1 : std::clamp<int64_t>((due_ms - monotonic_ms()) * 1000, 0, kMaxSleepUs);
    const int64_t nap_us = user.nap_us();
    if (nap_us >= 0 && (timeout_us < 0 || nap_us < timeout_us)) timeout_us = nap_us;
  }
  thread_.store({});
}

}  // namespace millrace::session
