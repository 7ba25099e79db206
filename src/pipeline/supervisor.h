// Supervisor: starts child processes, notices when one dies, and starts it again with growing pauses.
//
// Each start is a new incarnation with its own number, so that a late report of a dead one can be recognized. Children
// get SIGTERM from the kernel when this process dies by whatever way (see become_child); a child that ends with
// kExitBadInput cannot work with what it was given, and is not started again, unless it could before: what is missing
// then was there once, and may come back.
//
// Owned by app/. One thread of its own does everything, callbacks included; stop() may be called from any other thread.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "base/status.h"

namespace millrace {

inline constexpr int kExitBadInput = 2;            // of every Millrace program: the user's input is at fault
inline constexpr int kChildGraceMs = 2000;         // from SIGTERM to SIGKILL, by default
inline constexpr int kSupervisePollMs = 20;        // how late a death may be noticed
inline constexpr int kRestartPauseMs = 200;        // before the first restart; doubled at each quick death
inline constexpr int kMaxRestartPauseMs = 10'000;  // the longest pause
inline constexpr int kLongRunMs = 30'000;          // a child that ran so long starts with the short pause again

struct ChildSpec {
  std::string name;  // "scheduler"
  // The arguments after the program's name, for a given incarnation.
  std::function<std::vector<std::string>(uint64_t incarnation)> arguments;
  // Its environment is this process's, but for these,
  std::map<std::string, std::string> env = {};
  // and these, which neither has.
  std::map<std::string, std::string> env_defaults = {};
};

struct SupervisorEvents {
  // Just before a child is started.
  std::function<void(const std::string& name, uint64_t incarnation)> starting;
  // Right after it ended: "killed by signal 9", "exit code 1".
  std::function<void(const std::string& name, const std::string& how)> died;
  // It ended with kExitBadInput and stays down.
  std::function<void(const std::string& name)> gave_up;
  // Asked when it ended with kExitBadInput: whether any incarnation was ready to serve. Not set: none was.
  std::function<bool(const std::string& name)> had_served = nullptr;
};

class Supervisor {
 public:
  Supervisor(std::vector<ChildSpec> children, SupervisorEvents events);
  ~Supervisor();  // stop(0)

  void start();
  // Kills this incarnation of the child with SIGKILL because it hangs; its death is noticed, and it is started again,
  // as any other. From any thread. Nothing happens where it does not run any more: such a report may come late.
  void kill_hung(const std::string& name, uint64_t incarnation);
  // SIGTERM to all, then SIGKILL to those still there after grace_ms. Idempotent.
  void stop(int grace_ms);

 private:
  struct Child {
    ChildSpec spec;
    pid_t pid = -1;  // -1: not running
    uint64_t incarnation = 0;
    int pause_ms = kRestartPauseMs;
    int64_t started_ms = 0;
    int64_t start_at_ms = 0;
    bool given_up = false;
    std::atomic<uint64_t> kill = 0;  // the incarnation that hangs
    bool killed = false;             // this one, by the supervisor
  };

  void run();
  void launch(Child& child);
  void reap(Child& child, int wait_status);
  void end_all();

  std::deque<Child> children_;  // their addresses stay: kill_hung() may look while the thread works
  const SupervisorEvents events_;
  std::thread thread_;
  std::atomic<bool> stop_{false};
  std::atomic<int> grace_ms_{0};
};

// What a child calls first: SIGTERM when `parent` dies; SIGINT and SIGHUP ignored (a terminal sends them to the whole
// process group, and the parent decides). kUnavailable when the parent is dead already.
Status become_child(pid_t parent);
// False once the parent is gone.
bool parent_alive(pid_t parent);

}  // namespace millrace
