// Ctrl-C of the commands that wait for a server. A handler that sets a flag is not enough: a signal just before a call
// that waits would be noticed when the call returns. While an InterruptGuard lives, a thread ends the client's request
// after a signal, in whatever call it waits.
//
//   catch_interrupts({SIGINT});
//   InterruptGuard guard(client);
//   client.get(...);                  fails soon after a signal
//   if (guard.interrupted()) ...
//
// Owner: the thread that uses the client; one guard at a time in a process. Thread safety: that thread; interrupted()
// from any.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <initializer_list>
#include <thread>

#include "base/file_descriptor.h"
#include "http/client.h"

namespace millrace {

// From now on these signals end waits, with EINTR, and are remembered until take_interrupt().
void catch_interrupts(std::initializer_list<int> signals);
// Whether one came since the last call.
bool take_interrupt();

// Ctrl-C waits while this lives, for output: of a write that a signal ends stdio drops the rest, and counts it as
// failed.
class InterruptsHeld {
 public:
  InterruptsHeld();
  ~InterruptsHeld();
  InterruptsHeld(const InterruptsHeld&) = delete;
  InterruptsHeld& operator=(const InterruptsHeld&) = delete;

 private:
  sigset_t before_;
};

class InterruptGuard {
 public:
  explicit InterruptGuard(http::Client& client);
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  // One came before or during the guard's life.
  bool interrupted() const;

 private:
  void end_waits();

  http::Client& client_;
  const pthread_t owner_ = ::pthread_self();
  FileDescriptor done_;
  std::thread thread_;
};

}  // namespace millrace
