#include "pipeline/spawn.h"

#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string_view>

#include "base/argv.h"

extern char** environ;

namespace millrace {
namespace {

// "NAME=value" of each variable.
// Made here, before the child exists: between fork() and exec() a child of a process with threads may not allocate
// (fork(2)).
std::vector<std::string> environment_of(const SpawnOptions& options) {
  std::vector<std::string> out;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    if (!options.env.contains(std::string(text.substr(0, text.find('='))))) out.emplace_back(text);
  }
  for (const auto& [name, value] : options.env) out.push_back(name + "=" + value);
  for (const auto& [name, value] : options.env_defaults) {
    if (!options.env.contains(name) && ::getenv(name.c_str()) == nullptr) out.push_back(name + "=" + value);
  }
  return out;
}

}  // namespace

Result<pid_t> spawn_self(const SpawnOptions& options) {
  std::vector<std::string> arguments = options.arguments, environment = environment_of(options);
  arguments.insert(arguments.begin(), "millrace");
  // Point into the two lists, which stay until posix_spawn() returns.
  const std::vector<char*> argv = argv_of(arguments), envp = argv_of(environment);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  const sigset_t blocked = terminal_signals();
  // Blocked and not ignored: the program itself ignores them in become_child(), where a pending one is then dropped.
  posix_spawnattr_setsigmask(&attributes, &blocked);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  // No socket of a client may live on in a child: it would keep the connection open after this process closed it.
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  if (options.standard_output >= 0) {
    posix_spawn_file_actions_adddup2(&actions, options.standard_output, STDOUT_FILENO);
  }
  if (options.standard_error >= 0) {
    posix_spawn_file_actions_adddup2(&actions, options.standard_error, STDERR_FILENO);
  }
  posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
  pid_t pid = -1;
  // The running program's own file, also where the path that it was started by is another version by now.
  const int failure = posix_spawn(&pid, "/proc/self/exe", &actions, &attributes, argv.data(), envp.data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (failure != 0) return internal_error("cannot start a process: {}", std::strerror(failure));
  return pid;
}

std::string describe_exit(int wait_status) {
  if (WIFSIGNALED(wait_status)) {
    const int signal = WTERMSIG(wait_status);
    return fmt::format("killed by signal {} ({})", signal, sigabbrev_np(signal) ? sigabbrev_np(signal) : "?");
  }
  return fmt::format("exit code {}", WEXITSTATUS(wait_status));
}

sigset_t terminal_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGHUP);
  return set;
}

}  // namespace millrace
