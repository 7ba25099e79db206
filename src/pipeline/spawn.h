// Starts this very program again, as a child process.
//
// The child begins with a terminal's signals blocked and no others, whatever the calling thread blocks: one that comes
// before become_child() (supervisor.h) ignores them must not end it. It has no descriptors but the first three. With
// become_child() it gets SIGTERM when the thread that started it ends, so that thread must live as long as the child.
//
// Thread safety: free functions.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "base/status.h"

namespace millrace {

struct SpawnOptions {
  std::vector<std::string> arguments;  // after the program's name
  // Its environment is this process's, but for these,
  std::map<std::string, std::string> env = {};
  // and these, which neither has.
  std::map<std::string, std::string> env_defaults = {};
  // Descriptors that become its standard output and error; -1: this process's own.
  int standard_output = -1, standard_error = -1;
};

Result<pid_t> spawn_self(const SpawnOptions& options);

// "killed by signal 9 (KILL)", "exit code 1", of what waitpid() gave.
std::string describe_exit(int wait_status);

// What a terminal sends to its whole process group: the parent decides what comes of it.
sigset_t terminal_signals();

}  // namespace millrace
