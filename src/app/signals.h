// The signals that end a command, waited for by its main thread. Thread safety: the main thread.
#pragma once

#include <signal.h>

#include <initializer_list>

namespace millrace {

inline constexpr int kSignalTickMs = 50;  // how late a signal, or whatever else is looked at between, may be noticed

// SIGINT, SIGTERM and SIGHUP, blocked in this thread and in those that it starts.
inline sigset_t block_stop_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&set, signal);
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  return set;
}

// Waits up to kSignalTickMs. True: one came.
inline bool stop_signal(const sigset_t& set) {
  const timespec tick{0, kSignalTickMs * 1'000'000};
  return ::sigtimedwait(&set, nullptr, &tick) > 0;
}

}  // namespace millrace
