// The admin commands for profiles, as a process that has stages carries them out: base/trace.h records, one file a
// process. Several stages of one process get the same command and do it once.
//
// Thread safety: free functions, from any thread.
#pragma once

#include <string>

#include "base/status.h"

namespace millrace::loop {

// A folder that is this user's and that no other may write to; made where it is missing. kPermissionDenied: it is
// another user's, or others may write to it.
Status private_folder(const std::string& path);
// Where profiles go by default: a folder of this user's under the system's temporary one.
std::string default_profile_folder();

// Begins to record for `session`, an absolute path. Where there is no such folder (the command came from another host),
// the file will lie in a folder of that name in this user's own folder for profiles. Returns "recording".
Result<std::string> start_recording(const std::string& session);
// Writes the file; its path.
Result<std::string> stop_recording(const std::string& session);

}  // namespace millrace::loop
