// What a program that decodes untrusted bytes may do beyond computing: read its input and the system's libraries, and
// write to the descriptors that it was given.
//
// - seccomp (libseccomp): a list of system calls. No sockets, no new processes, no signals to others, files read-only.
// - Landlock, where the kernel has it: only /usr, the program's folder and a few files of /etc, /proc and /sys.
// - namespaces of users, network and IPC, where the kernel gives them to processes without privileges.
// Without the first one no program is started. The others are what the host offers: describe() states which.
//
// Owner: run_child(). Thread safety: make() and describe() in any thread; enter() in the new process, after vfork():
// it makes system calls alone.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"

namespace millrace {

class ChildSandbox {
 public:
  // For a program at `path`. kUnsupported: the kernel filters no system calls.
  static Result<ChildSandbox> make(const std::string& path);

  ~ChildSandbox();
  ChildSandbox(ChildSandbox&& other) noexcept;
  ChildSandbox& operator=(ChildSandbox&&) = delete;

  // False: the process must not go on.
  bool enter() const;

  // "seccomp, landlock, user, network and IPC namespaces": tried once, in a process of its own.
  static const std::string& describe();

 private:
  struct Filter;

  ChildSandbox(std::shared_ptr<const Filter> filter, int ruleset) : filter_(std::move(filter)), ruleset_(ruleset) {}

  std::shared_ptr<const Filter> filter_;
  int ruleset_ = -1;  // of Landlock; -1: the kernel has none
};

}  // namespace millrace
