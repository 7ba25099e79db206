#include "collective/cancel_signal.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

namespace millrace::collective {
namespace {

constexpr int kMaxPollMs = 60'000;  // poll() takes an int; the loop around it goes on
constexpr int kFlagMs = 100;

int left_ms(const WaitLimit& limit) {
  // Rounded up: rounded down, the last part of a millisecond would be polled in a loop without waiting.
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(limit.deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, kMaxPollMs));
}

}  // namespace

CancelSignal::CancelSignal() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

CancelSignal::~CancelSignal() {
  if (fd_ >= 0) close(fd_);
}

// First the flag: a wait that the descriptor ends looks at it.
void CancelSignal::cancel() {
  cancelled_.store(true, std::memory_order_release);
  const uint64_t one = 1;
  // It fails only where the counter is full, which is as readable.
  if (fd_ >= 0 && write(fd_, &one, sizeof(one)) < 0) return;
}

Status WaitLimit::check() const {
  if (cancel != nullptr && cancel->cancelled()) return error(StatusCode::kCancelled, "the process group was aborted");
  if (Clock::now() >= deadline) return error(StatusCode::kDeadline, "the time limit passed");
  return ok_status();
}

WaitLimit WaitLimit::at_most(std::chrono::milliseconds duration) const {
  return {std::min(deadline, Clock::now() + duration), cancel};
}

Status wait_for_any(const std::vector<int>& fds, short events, const WaitLimit& limit) {
  // Without a descriptor for cancel() the wait looks at the flag from time to time.
  const bool wakes = limit.cancel == nullptr || limit.cancel->fd() >= 0;
  // poll(2) ignores a negative descriptor: so an absent cancel signal needs no case of its own, nor a pair that is not
  // open.
  std::vector<pollfd> polled{{limit.cancel == nullptr ? -1 : limit.cancel->fd(), POLLIN, 0}};
  for (const int fd : fds) polled.push_back({fd, events, 0});
  while (true) {
    RETURN_IF_ERROR(limit.check());
    const int ready = poll(polled.data(), polled.size(), wakes ? left_ms(limit) : std::min(left_ms(limit), kFlagMs));
    if (ready < 0 && errno != EINTR) return error(StatusCode::kUnavailable, "poll: {}", std::strerror(errno));
    for (std::size_t i = 1; ready > 0 && i < polled.size(); ++i) {
      // Also POLLERR and POLLHUP, which poll() reports unasked: the read or write that follows has the reason.
      if (polled[i].revents != 0) return ok_status();
    }
  }
}

Status wait_for(int fd, short events, const WaitLimit& limit) { return wait_for_any({fd}, events, limit); }

Status pause_for(std::chrono::milliseconds duration, const WaitLimit& limit) {
  const WaitLimit shorter = limit.at_most(duration);
  const Status status = wait_for_any({}, 0, shorter);
  // The pause being over is no error; the caller's own limit may be over with it.
  return status.code() == StatusCode::kDeadline ? limit.check() : status;
}

}  // namespace millrace::collective
