// CpuWait: for how long threads of this process were ready to run and had no CPU, because the machine has too much to
// do or a hypervisor gave the CPU to others. Such a thread looks as if it hung.
//
// From /proc/self/task: a thread waited while the kernel counted it so (schedstat), and where it was ready at both ends
// of an interval, for what the CPU time that it got leaves of it: a wait that still lasts is in no count. The caller's
// own thread does not count.
//
// Owner: the caller. Thread safety: none.
#pragma once

#include <cstdint>
#include <string_view>
#include <unordered_map>

namespace millrace {

class CpuWait {
 public:
  // Milliseconds since the last call that the thread which waited longest has waited; 0 at the first call, for threads
  // that are new, and where the kernel has no figures.
  int64_t take_ms();
  // The next take_ms() is a first one.
  void restart() { threads_.clear(); }

  struct Thread {
    bool is_ready = false;  // it runs, or waits for a CPU
    int64_t ran_ns = 0, waited_ns = 0;
  };
  // Of a thread's `stat` and `schedstat`.
  static Thread parse(std::string_view stat, std::string_view schedstat);
  // How long it waited in an interval with these at its ends.
  static int64_t waited_ms(const Thread& before, const Thread& after, int64_t interval_ms);

 private:
  std::unordered_map<int, Thread> threads_;  // at the last call
  int64_t taken_ms_ = 0;                     // when that was
};

}  // namespace millrace
