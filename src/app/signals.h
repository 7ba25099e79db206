// The signals that end a command, waited for by its main thread. Thread safety: the main thread.
#pragma once

#include <signal.h>

#include <initializer_list>

namespace millrace {

inline constexpr int kSignalTickMs = 50;  // how late a signal, or whatever else is looked at between, may be noticed

// SIGTERM, and SIGINT and SIGHUP but for those that were ignored when this process began (nohup, a shell's background
// job): blocked in this thread and in those that it starts. A blocked signal that is ignored would be waited for all
// the same, since Linux keeps it.
inline sigset_t block_stop_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  for (int signal : {SIGINT, SIGHUP}) {
    struct sigaction now {};
    ::sigaction(signal, nullptr, &now);
    if (now.sa_handler != SIG_IGN) sigaddset(&set, signal);
  }
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  return set;
}

// Of a child process: SIGTERM alone. What a terminal sends reaches the parent too, which decides (become_child()).
inline sigset_t block_child_stop_signal() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  return set;
}

// Waits up to kSignalTickMs. True: one came.
inline bool stop_signal(const sigset_t& set) {
  const timespec tick{0, kSignalTickMs * 1'000'000};
  return ::sigtimedwait(&set, nullptr, &tick) > 0;
}

// Whether one came; does not wait.
inline bool stop_signal_came(const sigset_t& set) {
  const timespec none{0, 0};
  return ::sigtimedwait(&set, nullptr, &none) > 0;
}

}  // namespace millrace
