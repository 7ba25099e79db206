#include "stages/loop/profile_commands.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/trace.h"

namespace millrace::loop {
namespace {

bool is_folder(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

// The session's folder as this process sees it.
Result<std::string> seen_folder(const std::string& session) {
  const std::string name = session.substr(session.rfind('/') + 1);
  if (session.empty() || session[0] != '/' || name.empty() || name == "." || name == "..") {
    return invalid_argument("the folder of a profile is '{}'; wanted an absolute path", session.substr(0, 256));
  }
  return is_folder(session) ? session : default_profile_folder() + "/" + name;
}

}  // namespace

Status private_folder(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    return internal_error("cannot make the folder {}: {}", path, std::strerror(errno));
  }
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) return internal_error("cannot look at {}: {}", path, std::strerror(errno));
  if (!S_ISDIR(info.st_mode) || info.st_uid != ::geteuid() || (info.st_mode & 022) != 0) {
    return error(StatusCode::kPermissionDenied,
                 "{} is not a folder that this user alone may write to; remove it, or name another with --profile-dir",
                 path);
  }
  return ok_status();
}

std::string default_profile_folder() {
  const char* root = std::getenv("TMPDIR");
  return fmt::format("{}/millrace-profiles-{}", root != nullptr && *root != '\0' ? root : "/tmp", ::geteuid());
}

Result<std::string> start_recording(const std::string& session) {
  ASSIGN_OR_RETURN(const std::string folder, seen_folder(session));
  if (folder != session) RETURN_IF_ERROR(private_folder(default_profile_folder()));
  RETURN_IF_ERROR(private_folder(folder));
  RETURN_IF_ERROR(trace::start(folder));
  return std::string("recording");
}

Result<std::string> stop_recording(const std::string& session) {
  ASSIGN_OR_RETURN(const std::string folder, seen_folder(session));
  return trace::stop(folder);
}

}  // namespace millrace::loop
