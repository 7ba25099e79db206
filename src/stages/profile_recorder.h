// ProfileRecorder: one profile at a time of a pipeline: in this process, and by admin command in those of its stages
// (stages/loop/profile_commands.h). Each writes its part into the session's folder; the end makes one file of them.
//
// Owner: the process that composes the pipeline. Thread safety: all functions from any thread.
#pragma once

#include <mutex>
#include <string>
#include <utility>

#include "base/status.h"

namespace millrace {

inline constexpr int kMaxProfilesASecond = 16;  // whose files have names of their own

class ProfileRecorder {
 public:
  // Empty: the user's own folder for profiles.
  explicit ProfileRecorder(std::string folder);

  // This process records. The session: a folder, whose path the others get. kConflict: one is recorded already;
  // kPermissionDenied: the folder is not this user's alone.
  Result<std::string> start();
  // The session of the profile that ends. kConflict: there is none, or it ends already.
  Result<std::string> begin_stop();
  // After begin_stop(), when the others have written their parts: the path of the whole. Reads and writes files.
  Result<std::string> finish();

 private:
  const std::string folder_;
  std::mutex mutex_;
  std::string session_;  // empty: nothing is recorded
  bool ending_ = false;
  int sessions_ = 0;
};

}  // namespace millrace
