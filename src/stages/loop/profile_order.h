// The operator's orders about profiles, as a process that has stages carries them out: base/trace.h records, one file a
// process. Several stages of one process are told the same and do it once.
//
// Thread safety: free functions, from any thread.
#pragma once

#include <string>

#include "base/status.h"

namespace millrace::loop {

// A folder that is this user's and that nobody else may write to; made where it is missing. kPermissionDenied: it is
// somebody else's, or others may write to it.
Status private_folder(const std::string& path);
// Where profiles go when nobody says it: a folder of this user's under the system's temporary one.
std::string default_profile_folder();

// Begins to record for `session`, an absolute path. Where there is no such folder (the order came from another host),
// the file will lie in a folder of that name in this user's own folder for profiles. Says "recording".
Result<std::string> start_recording(const std::string& session);
// Writes the file; its path.
Result<std::string> stop_recording(const std::string& session);

}  // namespace millrace::loop
