#include "pipeline/supervisor.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "base/clock.h"
#include "base/log.h"
#include "pipeline/spawn.h"
#include "stages/stage.h"

namespace millrace {

Supervisor::Supervisor(std::vector<ChildSpec> children, SupervisorEvents events) : events_(std::move(events)) {
  for (ChildSpec& spec : children) children_.emplace_back().spec = std::move(spec);
}

Supervisor::~Supervisor() { stop(0); }

// The children are tied to the thread that starts them (see prctl(2), PR_SET_PDEATHSIG), so all of them are
// started by this one thread, which runs until they are gone.
void Supervisor::start() {
  // An ignored SIGCHLD is inherited; the kernel would then reap the children itself.
  ::signal(SIGCHLD, SIG_DFL);
  thread_ = std::thread([this] { run(); });
}

void Supervisor::stop(int grace_ms) {
  grace_ms_.store(grace_ms);
  stop_.store(true);
  if (thread_.joinable()) thread_.join();
}

void Supervisor::kill_hung(const std::string& name, uint64_t incarnation) {
  for (Child& child : children_) {
    if (child.spec.name != name) continue;
    uint64_t named = child.kill.load();  // the newest that was named: a late report must not take its place
    while (named < incarnation && !child.kill.compare_exchange_weak(named, incarnation)) {
    }
  }
}

void Supervisor::run() {
  while (!stop_.load()) {
    for (Child& child : children_) {
      if (child.pid < 0) {
        if (!child.given_up && monotonic_ms() >= child.start_at_ms) launch(child);
        continue;
      }
      // The number is compared here, on the thread that starts and reaps: a report of an earlier incarnation kills
      // nothing.
      if (child.kill.exchange(0) == child.incarnation) {
        LOG_ERROR("the process '{}' hangs: it is killed", child.spec.name);
        ::kill(child.pid, SIGKILL);
        child.killed = true;
      }
      int wait_status = 0;
      // Polled by pid: waitpid(-1) would take the exit of children that other parts of this process have started.
      if (::waitpid(child.pid, &wait_status, WNOHANG) == child.pid) reap(child, wait_status);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(kSupervisePollMs));
  }
  end_all();
}

void Supervisor::launch(Child& child) {
  // Before `starting`, which reports it: the coordinator expects this number before the process can register with it.
  ++child.incarnation;
  child.started_ms = monotonic_ms();
  child.killed = false;
  events_.starting(child.spec.name, child.incarnation);
  auto pid = spawn_self({.arguments = child.spec.arguments(child.incarnation),
                         .env = child.spec.env,
                         .env_defaults = child.spec.env_defaults});
  if (pid.ok()) {
    child.pid = *pid;
    return;
  }
  LOG_ERROR("the {} could not be started: {}", child.spec.name, pid.status().message());
  child.start_at_ms = monotonic_ms() + child.pause_ms;
  child.pause_ms = std::min(child.pause_ms * 2, kMaxRestartPauseMs);
}

void Supervisor::reap(Child& child, int wait_status) {
  child.pid = -1;
  // The pauses are for a child that dies at its start; one that ran for long had another reason.
  if (monotonic_ms() - child.started_ms >= kLongRunMs) child.pause_ms = kRestartPauseMs;
  const std::string how = describe_exit(wait_status);
  // First: the coordinator ends what depends on this incarnation before the next one can register.
  events_.died(child.spec.name, how);
  const bool bad_input = WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == kExitBadInput;
  if (bad_input && !(events_.had_served && events_.had_served(child.spec.name))) {
    child.given_up = true;
    events_.gave_up(child.spec.name);
    return;
  }
  const bool by_another = WIFSIGNALED(wait_status) && WTERMSIG(wait_status) == SIGKILL && !child.killed;
  const char* hint = by_another ? ", as the kernel does where memory runs out (see dmesg)" : "";
  LOG_ERROR("the {} stopped: {}{}; starting it again in {} ms", child.spec.name, how, hint, child.pause_ms);
  child.start_at_ms = monotonic_ms() + child.pause_ms;
  child.pause_ms = std::min(child.pause_ms * 2, kMaxRestartPauseMs);
}

void Supervisor::end_all() {
  for (const Child& child : children_) {
    if (child.pid > 0) ::kill(child.pid, SIGTERM);
  }
  // One for all children: stop() takes grace_ms and not as often as there are children.
  const int64_t deadline_ms = monotonic_ms() + grace_ms_.load();
  for (Child& child : children_) {
    while (child.pid > 0) {
      int wait_status = 0;
      const pid_t ended = ::waitpid(child.pid, &wait_status, WNOHANG);
      // ECHILD: another part of the process has reaped it; it is gone either way.
      if (ended == child.pid || (ended < 0 && errno != EINTR)) {
        child.pid = -1;
      } else if (monotonic_ms() >= deadline_ms) {
        ::kill(child.pid, SIGKILL);
        // Without a limit: after SIGKILL only the kernel is left to wait for.
        ::waitpid(child.pid, &wait_status, 0);
        child.pid = -1;
      } else {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
    }
  }
}

Status become_child(pid_t parent) {
  ::signal(SIGINT, SIG_IGN);
  ::signal(SIGHUP, SIG_IGN);
  const sigset_t ignored = terminal_signals();  // no longer blocked: Linux keeps a blocked one pending
  ::pthread_sigmask(SIG_UNBLOCK, &ignored, nullptr);
  // prctl(2): sent when the thread that started this process ends. Children of this process do not inherit it.
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  // Behind prctl(): a parent that died before it sends nothing, and getppid() shows another process.
  if (!parent_alive(parent)) return Status(StatusCode::kUnavailable, "the parent process is gone");
  return ok_status();
}

bool parent_alive(pid_t parent) { return ::getppid() == parent; }

}  // namespace millrace
