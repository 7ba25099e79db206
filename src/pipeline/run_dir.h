// The run folder of one instance: its ipc:// sockets, and a lock file that distinguishes a live instance from a dead
// one.
//
// Run folders live under one folder of this user (root_folder()): "$XDG_RUNTIME_DIR/millrace", else
// "$TMPDIR/millrace-UID"; mode 0700. A run folder is "run-XXXXXX" in it, and holds
//   lock      a marker line; the instance holds flock() on it, so the kernel releases it however the process ends
//   *.sock    the sockets
// Its owner's destructor removes it; when the owner was killed, a child that outlives it, or the next start, which
// sweeps the folders whose lock it can take. Removal unlinks these files by name and type, then the folder and the root
// where they are empty, never recursively; a folder without the marker is never touched.
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
  // "ipc:///run/user/1000/millrace/run-x1Y2z3/scheduler-1.sock"
  std::string endpoint(const std::string& name) const { return ipc_endpoint(path_, name); }

  static std::string ipc_endpoint(const std::string& run_dir, const std::string& name) {
    return "ipc://" + run_dir + "/" + name + ".sock";
  }
  static std::string root_folder();
  // For a child whose parent was killed, and for a forced exit: removes the run folder at `path`, whether or not its
  // lock is held. Does nothing for an empty path or a folder without the marker.
  static void remove(const std::string& path);

 private:
  RunDir(std::string path, int lock_fd) : path_(std::move(path)), lock_fd_(lock_fd) {}

  std::string path_;
  int lock_fd_ = -1;
};

}  // namespace millrace
