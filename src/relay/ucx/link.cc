// The thread of a Link: its loop, jobs, time and the end. Peers and messages: link_peers.cc.
#include "relay/ucx/link.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/log.h"
#include "relay/op_table.h"
#include "relay/spin.h"

namespace millrace::ucx {
namespace {

constexpr int kMaxProgress = 64;  // calls of UCX's in one turn
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

}  // namespace

void Link::post(std::function<void()> job) {
  {
    std::lock_guard lock(mutex_);
    if (stopped_) return;
    jobs_.push_back(std::move(job));
    pending_.store(true);
  }
  if (sleeping_.exchange(false)) (void)eventfd_write(wake_fd_, 1);
}

void Link::wake_by(int64_t due_ms) {
  {
    std::lock_guard lock(mutex_);
    if (due_ms >= planned_ms_ || wanted_) return;
    wanted_ = true;
    pending_.store(true);
  }
  if (sleeping_.exchange(false)) (void)eventfd_write(wake_fd_, 1);
}

void Link::stop() {
  stop_.store(true);
  post([] {});
}

bool Link::run_jobs() {
  if (!pending_.load(std::memory_order_acquire)) return false;
  std::vector<std::function<void()>> jobs;
  {
    std::lock_guard lock(mutex_);
    jobs.swap(jobs_);
    if (wanted_) next_ms_ = 0;
    pending_.store(false);
  }
  for (const auto& job : jobs) job();
  return !jobs.empty();
}

void Link::keep_time(bool late) {
  {
    // What comes from here on is not seen by on_time() below, perhaps, and asks for another call.
    std::lock_guard lock(mutex_);
    wanted_ = false;
    planned_ms_ = kNever;
  }
  if (late) {
    // We did not run for long (stopped, or starved): that a peer was not heard is not its fault.
    for (auto& [at, peer] : peers_) peer->heard_ms = time_ms_;
  }
  int64_t next = watch(time_ms_);
  const int64_t wait = events_->on_time(time_ms_);
  if (wait >= 0) next = std::min(next, time_ms_ + std::max<int64_t>(wait, 1));
  next_ms_ = next;
  std::lock_guard lock(mutex_);
  planned_ms_ = wanted_ ? kNever : next;
}

bool Link::turn() {
  // While somebody is waited for, a ping is due more often than this.
  const int64_t before_ms = std::exchange(time_ms_, relay_now_ms());
  const bool late = time_ms_ - before_ms > options_.silent_ms / 2;
  bool happened = run_jobs();
  for (int i = 0; i < kMaxProgress && api_.ucp_worker_progress(worker_) != 0; ++i) happened = true;
  happened = events_->on_idle() || happened;
  if (!failed_.empty()) bury();
  (void)reap();
  if (late || time_ms_ >= next_ms_) {
    keep_time(late);
    if (!failed_.empty()) bury();
  }
  return happened;
}

void Link::sleep() {
  sleeping_.store(true);
  if (!pending_.load() && api_.ucp_worker_arm(worker_) == UCS_OK) {
    pollfd fds[2] = {{ucx_fd_, POLLIN, 0}, {wake_fd_, POLLIN, 0}};
    int timeout_ms = -1;
    if (next_ms_ != kNever) {
      timeout_ms = static_cast<int>(std::clamp<int64_t>(next_ms_ - relay_now_ms(), 0, 1'000'000));
    }
    if (!closing_.empty()) timeout_ms = 1;
    (void)poll(fds, 2, timeout_ms);
    eventfd_t count;
    if ((fds[1].revents & POLLIN) != 0) (void)eventfd_read(wake_fd_, &count);
  }
  sleeping_.store(false);
}

bool Link::run(LinkEvents& events) {
  events_ = &events;
  Spin spin;
  while (!stop_.load(std::memory_order_relaxed)) {
    if (turn()) {
      spin.happened();
    } else if (!spin.again()) {
      sleep();
    }
  }
  (void)run_jobs();
  const bool clean = tear_down();
  std::vector<std::function<void()>> dropped;
  std::lock_guard lock(mutex_);
  stopped_ = true;
  dropped.swap(jobs_);
  return clean;
}

bool Link::tear_down() {
  api_.ucp_listener_destroy(listener_);
  listener_ = nullptr;
  for (auto& [at, peer] : peers_) {
    if (!peer->gone && peer->open) send(*peer, {.type = FrameType::kBye});
  }
  int64_t until_ms = relay_now_ms() + kGoodbyeMs;
  while (in_flight_ > 0 && relay_now_ms() < until_ms) (void)api_.ucp_worker_progress(worker_);
  for (auto& [at, peer] : peers_) fail(*peer, Status(StatusCode::kCancelled, "the relay was closed"));
  bury();
  until_ms = relay_now_ms() + kTeardownMs;
  while ((!reap() || in_flight_ > 0) && relay_now_ms() < until_ms) {
    if (api_.ucp_worker_progress(worker_) == 0) usleep(100);
  }
  if (!closing_.empty() || in_flight_ > 0) {
    LOG_WARNING("ucx: {} connections with {} requests did not end within {} ms; they are abandoned", closing_.size(),
                in_flight_, kTeardownMs);
    for (auto& peer : closing_) (void)peer.release();  // UCX may still speak of them
    closing_.clear();
    context_ = nullptr;
    worker_ = nullptr;
    return false;
  }
  api_.ucp_worker_destroy(worker_);
  worker_ = nullptr;
  return true;
}

}  // namespace millrace::ucx
