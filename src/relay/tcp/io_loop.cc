#include "relay/tcp/io_loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "relay/op_table.h"
#include "relay/tcp/limits.h"

namespace millrace::tcp {
namespace {

constexpr uint64_t kWakeId = 0;
constexpr std::size_t kEventsPerTurn = 64;

}  // namespace

IoLoop::~IoLoop() {
  stop();
  if (epoll_ >= 0) close(epoll_);
  if (wake_fd_ >= 0) close(wake_fd_);
}

Status IoLoop::open() {
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  wake_fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  epoll_event event{.events = EPOLLIN, .data = {.u64 = kWakeId}};
  if (epoll_ < 0 || wake_fd_ < 0 || epoll_ctl(epoll_, EPOLL_CTL_ADD, wake_fd_, &event) != 0) {
    return error(StatusCode::kUnavailable, "cannot wait for sockets: {}", std::strerror(errno));
  }
  return ok_status();
}

void IoLoop::start(TurnEnd turn_end) {
  turn_end_ = std::move(turn_end);
  thread_ = std::thread([this] { run(); });
}

void IoLoop::stop() {
  stopping_.store(true);
  if (!thread_.joinable()) return;
  wake();
  thread_.join();
}

Result<uint64_t> IoLoop::add(int fd, uint32_t events, Events callback) {
  const uint64_t id = next_id_++;
  epoll_event event{.events = events, .data = {.u64 = id}};
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) != 0) {
    return error(StatusCode::kUnavailable, "cannot wait for a socket: {}", std::strerror(errno));
  }
  watched_[id] = {fd, std::make_shared<Events>(std::move(callback))};
  return id;
}

void IoLoop::modify(uint64_t id, uint32_t events) {
  const auto it = watched_.find(id);
  if (it == watched_.end()) return;
  epoll_event event{.events = events, .data = {.u64 = id}};
  CHECK(epoll_ctl(epoll_, EPOLL_CTL_MOD, it->second.fd, &event) == 0);
}

void IoLoop::remove(uint64_t id) {
  const auto it = watched_.find(id);
  if (it == watched_.end()) return;
  epoll_ctl(epoll_, EPOLL_CTL_DEL, it->second.fd, nullptr);
  watched_.erase(it);
}

void IoLoop::wake() {
  const uint64_t one = 1;
  // A full counter wakes as well: nothing is lost where the write fails.
  [[maybe_unused]] const ssize_t written = write(wake_fd_, &one, sizeof(one));
}

void IoLoop::post(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    posted_.push_back(std::move(work));
  }
  // The loop does it the other way round (asleep, then a look), so one of the two sees the other.
  pending_.store(true);
  if (asleep_.exchange(false)) wake();
}

void IoLoop::wake_by(int64_t due_ms) {
  if (due_ms < due_ms_.load()) wake();
}

bool IoLoop::turn(int64_t timeout_ms) {
  std::array<epoll_event, kEventsPerTurn> events;
  if (timeout_ms != 0) asleep_.store(true);
  if (pending_.load()) timeout_ms = 0;
  const int count = epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), static_cast<int>(timeout_ms));
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
  if (!pending_.exchange(false)) return count > 0;
  std::vector<std::function<void()>> work;
  {
    const std::lock_guard lock(mutex_);
    work.swap(posted_);
  }
  for (const auto& one : work) one();
  return true;
}

void IoLoop::run() {
  Spin spin;
  int64_t timeout_ms = 0;
  while (!stopping_.load()) {
    bool any = timeout_ms != 0 && turn(0);
    while (!any && timeout_ms != 0 && !stopping_.load() && spin.again()) any = turn(0);
    if (any || turn(timeout_ms)) spin.happened();
    due_ms_.store(INT64_MAX);  // whoever comes from here on wakes, as turn_end() may have looked already
    const int64_t due_ms = turn_end_(relay_now_ms());
    due_ms_.store(due_ms);
    timeout_ms = due_ms == INT64_MAX ? -1 : std::clamp<int64_t>(due_ms - relay_now_ms(), 0, kMaxSleepMs);
  }
}

}  // namespace millrace::tcp
