#include "control/inbox_waker.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>

#include "base/log.h"

namespace millrace {

// Without a descriptor (the process has none left) the receiver still wakes when its time is over.
InboxWaker::InboxWaker() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (fd_ < 0) LOG_ERROR("no eventfd for an inbox: it will be woken late");
}

InboxWaker::~InboxWaker() {
  if (fd_ >= 0) ::close(fd_);
}

void InboxWaker::wake() {
  // First the word, then the look whether the receiver waits; the receiver does it the other way round, so one of the
  // two sees the other.
  woken_.store(true);
  if (!waiting_.exchange(false)) return;
  const uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(fd_, &one, sizeof one);  // a full counter is readable anyway
}

bool InboxWaker::begin_waiting() {
  waiting_.store(true);
  if (!woken_.load()) return true;
  waiting_.store(false);
  return false;
}

void InboxWaker::drain() {
  uint64_t count;
  [[maybe_unused]] const auto got = ::read(fd_, &count, sizeof count);
}

}  // namespace millrace
