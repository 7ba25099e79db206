// ShutdownWatchdog: a process that was asked to end does end, whatever its threads are doing. Loading a model and a
// worker's call do not look at a request to stop, and joining such a thread waits for as long as it takes.
//
// Made before the stages, so gone after them: its destructor means that everything has ended by itself.
//
// Owner: the command that may be asked to end. Thread safety: begin() from any thread; the rest from the one that made
// it.
#pragma once

#include <signal.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <thread>

namespace millrace {

inline constexpr int kStopGraceMs = 2500;    // of a child process; longer than its parent waits (kChildGraceMs)
inline constexpr int kServerGraceMs = 8000;  // of the server and of a stage that joined one, for which no parent waits:
                                             // twice what a server's children, stages and last words may take

class ShutdownWatchdog {
 public:
  // `last_act`: called before an end by force, by a thread of the watchdog's own; must not wait for any other.
  explicit ShutdownWatchdog(std::function<void()> last_act);
  // After begin(), one of these signals, which all threads block, ends the process at once. Not for child processes:
  // when the parent dies, Linux sends its SIGTERM once for each of the parent's threads that had them for a while.
  ShutdownWatchdog(const sigset_t& signals, std::function<void()> last_act);
  ~ShutdownWatchdog();

  // The exit codes of an end by force.
  struct ExitCodes {
    int at_timeout = 1;
    int at_signal = 1;
  };
  // The stages are asked to end now: after grace_ms, or at a signal, they are left behind and the process ends. The
  // first call counts.
  void begin(int grace_ms, ExitCodes codes);
  void begin(int grace_ms, int exit_code = 1) { begin(grace_ms, {exit_code, exit_code}); }

 private:
  void end_by_force(int grace_ms, ExitCodes codes);

  sigset_t signals_;
  const std::function<void()> last_act_;
  std::once_flag begun_;
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

}  // namespace millrace
