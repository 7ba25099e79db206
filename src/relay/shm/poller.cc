#include "relay/shm/poller.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <array>
#include <cerrno>
#include <cstring>

namespace millrace::shm {

Result<Fd> Poller::make_bell() {
  Fd bell(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (bell.valid()) return bell;
  return error(StatusCode::kResourceExhausted, "shm relay: eventfd: {}", std::strerror(errno));
}

Result<Poller> Poller::make() {
  Poller poller;
  poller.epoll_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
  if (!poller.epoll_.valid()) {
    return error(StatusCode::kResourceExhausted, "shm relay: epoll_create1: {}", std::strerror(errno));
  }
  ASSIGN_OR_RETURN(poller.bell_, make_bell());
  // Edge-triggered and never read: each ring() is an edge, so two rings before a wait() are one event, and none is
  // lost.
  RETURN_IF_ERROR(poller.add(poller.bell_, kBellId, EPOLLIN | EPOLLET));
  return poller;
}

Status Poller::add(int fd, uint64_t id, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0) return ok_status();
  return error(StatusCode::kResourceExhausted, "shm relay: epoll_ctl: {}", std::strerror(errno));
}

void Poller::change(int fd, uint64_t id, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
}

void Poller::remove(int fd) {
  if (fd >= 0) (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

// A full counter refuses the write (EAGAIN) after 2^64 - 2 rings: never.
void Poller::ring() const { (void)::eventfd_write(bell_.get(), 1); }

std::vector<Poller::Event> Poller::wait(int timeout_ms) {
  std::array<epoll_event, kMaxEvents> ready;
  // EINTR is -1 and so no events: the caller's loop waits again.
  const int count = ::epoll_wait(epoll_.get(), ready.data(), kMaxEvents, timeout_ms);
  std::vector<Event> events;
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = ready[static_cast<std::size_t>(i)];
    if (event.data.u64 != kBellId) events.push_back({event.data.u64, event.events});
  }
  return events;
}

}  // namespace millrace::shm
