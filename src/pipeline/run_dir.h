// The folder of one running instance: its ipc:// sockets, and a lock that tells the living from the dead.
//
// "$TMPDIR/millrace-XXXXXX", mode 0700. The instance holds flock() on its lock file, so the kernel lets go whatever way
// the process ends. The folder is removed by its owner's destructor; when the owner was killed, by the children that
// outlive it for a moment, and at the latest by the next start, which sweeps folders whose lock nobody holds.
//
// Thread safety: one thread.
#pragma once

#include <string>

#include "base/status.h"

namespace millrace {

class RunDir {
 public:
  static Result<RunDir> create();
  RunDir(RunDir&& other) noexcept;
  RunDir& operator=(RunDir&&) = delete;
  ~RunDir();

  const std::string& path() const { return path_; }
  // "ipc:///tmp/millrace-x1Y2z3/scheduler-1.sock"
  std::string endpoint(const std::string& name) const { return ipc_endpoint(path_, name); }

  static std::string ipc_endpoint(const std::string& run_dir, const std::string& name) {
    return "ipc://" + run_dir + "/" + name + ".sock";
  }
  // For a child whose parent was killed, and for an end by force. Nothing happens for an empty path.
  static void remove(const std::string& path);

 private:
  RunDir(std::string path, int lock_fd) : path_(std::move(path)), lock_fd_(lock_fd) {}

  std::string path_;
  int lock_fd_ = -1;
};

}  // namespace millrace
