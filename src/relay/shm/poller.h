// Poller: epoll, with events identified by the ids that they were added with, and a bell that any thread rings.
//
// Owner: the shared-memory relay (shm_relay.cc); Acceptor and Fetcher refer to it.
// Thread safety: ring(), add(), change() and remove() from any thread; wait() by one.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "relay/shm/shared_memory.h"

namespace millrace::shm {

class Poller {
 public:
  struct Event {
    uint64_t id = 0;
    uint32_t events = 0;  // EPOLLIN, EPOLLHUP
  };
  static constexpr uint64_t kBellId = 0;
  static constexpr int kMaxEvents = 64;  // of one wait()

  static Result<Poller> make();
  // An eventfd that wakes wait() each time that it is written to. It is never read: edges are what counts, so no
  // process that shares it can take a wake-up away.
  static Result<Fd> make_bell();

  Status add(const Fd& fd, uint64_t id, uint32_t events) { return add(fd.get(), id, events); }
  Status add(int fd, uint64_t id, uint32_t events);
  void change(int fd, uint64_t id, uint32_t events);
  void remove(int fd);
  void ring() const;
  // Waits up to timeout_ms (negative: for ever). Events of our own bell are left out.
  std::vector<Event> wait(int timeout_ms);

 private:
  Fd epoll_;
  Fd bell_;
};

}  // namespace millrace::shm
