// How the benches wait, the same on both sides of a comparison, so that what a road costs is told apart from what
// waking a sleeper costs.
//
//   kPoll    nobody in the bench sleeps: whoever waits looks again and again, and lets others run in between. Then a
//            figure is the work alone. (Threads of the relays themselves wait as they always do.)
//   kSleep   everybody sleeps in the kernel until he is woken, as stages do.
//
// On a virtual machine a processor with nothing to do is given back, and waking somebody there costs 35 to 90 us. With
// KeepAwake in scope that cost is out of both sides: a process of the idle class on each processor keeps it.
//
// Thread safety: values; the functions from any thread.
#pragma once

#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace millrace::bench {

enum class Waiting { kPoll, kSleep };
inline const char* name_of(Waiting waiting) { return waiting == Waiting::kPoll ? "polling" : "sleeping"; }

// A count that is waited for; several threads.
class Counter {
 public:
  explicit Counter(Waiting waiting) : waiting_(waiting) {}
  void add() {
    if (waiting_ == Waiting::kPoll) {
      count_.fetch_add(1, std::memory_order_release);
      return;
    }
    std::lock_guard lock(mutex_);
    count_.fetch_add(1, std::memory_order_release);
    changed_.notify_all();
  }
  void wait(int wanted) {
    if (waiting_ == Waiting::kPoll) {
      while (count_.load(std::memory_order_acquire) < wanted) ::sched_yield();
      return;
    }
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return count_.load() >= wanted; });
  }

 private:
  const Waiting waiting_;
  std::atomic<int> count_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
};

// recv(), waiting so. One that polls goes to sleep when nothing has come for kPollMs: others are measured then.
inline constexpr int kPollMs = 2;
inline ssize_t receive(Waiting waiting, int fd, void* to, std::size_t bytes) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point until = Clock::now() + std::chrono::milliseconds(kPollMs);
  for (bool poll = waiting == Waiting::kPoll;; poll = poll && Clock::now() < until) {
    const ssize_t got = ::recv(fd, to, bytes, poll ? MSG_DONTWAIT : 0);
    if (got >= 0 || (errno != EAGAIN && errno != EINTR)) return got;
    if (poll) ::sched_yield();
  }
}

// While all poll, each process has a processor of its own: two on one would hand it to and fro a time slice at a time.
inline void settle(Waiting waiting, unsigned process) {
  if (waiting != Waiting::kPoll) return;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(process % std::max(1u, std::thread::hardware_concurrency()), &one);
  (void)::sched_setaffinity(0, sizeof one, &one);
}
// And again anywhere.
inline void unsettle() {
  cpu_set_t all;
  CPU_ZERO(&all);
  for (unsigned i = 0; i < std::thread::hardware_concurrency(); ++i) CPU_SET(i, &all);
  (void)::sched_setaffinity(0, sizeof all, &all);
}

// Keeps every processor busy with nothing, by a process each: everything else goes before it, and its time is not
// counted as ours. Make it before threads and large memory.
class KeepAwake {
 public:
  explicit KeepAwake(bool wanted) {
    for (unsigned i = 0; wanted && i < std::thread::hardware_concurrency(); ++i) {
      const pid_t child = ::fork();
      if (child != 0) {
        children_.push_back(child);
        continue;
      }
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      cpu_set_t one;
      CPU_ZERO(&one);
      CPU_SET(i, &one);
      const sched_param none{};
      if (::sched_setaffinity(0, sizeof one, &one) == 0 && ::sched_setscheduler(0, SCHED_IDLE, &none) == 0) {
        for (;;) asm volatile("");
      }
      ::_exit(0);
    }
  }
  ~KeepAwake() {
    for (const pid_t child : children_) {
      ::kill(child, SIGKILL);
      ::waitpid(child, nullptr, 0);
    }
  }
  KeepAwake(const KeepAwake&) = delete;
  KeepAwake& operator=(const KeepAwake&) = delete;

 private:
  std::vector<pid_t> children_;
};

}  // namespace millrace::bench
