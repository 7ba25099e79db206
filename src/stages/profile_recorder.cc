#include "stages/profile_recorder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <vector>

#include "base/log.h"
#include "base/trace.h"
#include "stages/loop/profile_commands.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> files_in(const std::string& folder) {
  std::vector<std::string> out;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    if (entry->path().extension() == ".json") out.push_back(entry->path().string());
  }
  std::sort(out.begin(), out.end());
  return out;
}

// Removes the session's folder with the parts that trace::stop() wrote, "PID.json"; with anything else in it, it stays.
void remove_session(const std::string& session) {
  std::error_code ignored;
  for (const std::string& path : files_in(session)) {
    const std::string pid = fs::path(path).stem().string();
    if (pid.find_first_not_of("0123456789") == std::string::npos) fs::remove(path, ignored);
  }
  ::rmdir(session.c_str());
}

// Of the session's parts, a file of a name that is free.
Result<std::string> merged(const std::string& session, const std::string& folder) {
  for (int i = 0; i < kMaxProfilesASecond; ++i) {
    const std::string more = i == 0 ? std::string() : fmt::format("-{}", i);
    const std::string path = fmt::format("{}/trace-{}{}.json", folder, std::time(nullptr), more);
    if (fs::exists(path)) continue;
    RETURN_IF_ERROR(trace::merge_traces(files_in(session), path));
    return path;
  }
  return error(StatusCode::kConflict, "{} profiles of this second are in {} already", kMaxProfilesASecond, folder);
}

}  // namespace

ProfileRecorder::ProfileRecorder(std::string folder)
    : folder_(folder.empty() ? loop::default_profile_folder() : std::move(folder)) {}

Result<std::string> ProfileRecorder::start() {
  std::lock_guard lock(mutex_);
  if (!session_.empty()) {
    return Status(StatusCode::kConflict, "a profile is being recorded already; stop it first");
  }
  RETURN_IF_ERROR(loop::private_folder(folder_));
  const std::string session =
      fmt::format("{}/session-{}-{}-{}", fs::absolute(folder_).string(), std::time(nullptr), ::getpid(), ++sessions_);
  RETURN_IF_ERROR(loop::private_folder(session));
  RETURN_IF_ERROR(trace::start(session));
  session_ = session;
  ending_ = false;
  return session;
}

Result<std::string> ProfileRecorder::begin_stop() {
  std::lock_guard lock(mutex_);
  if (session_.empty() || ending_) {
    return Status(StatusCode::kConflict, "no profile is being recorded; start one first");
  }
  ending_ = true;
  return session_;
}

Result<std::string> ProfileRecorder::finish() {
  std::string session;
  {
    std::lock_guard lock(mutex_);
    session = session_;
  }
  if (const auto local = trace::stop(session); !local.ok()) {
    LOG_ERROR("this process's part of the profile is lost: {}", local.status().message());
  }
  Result<std::string> path = merged(session, folder_);
  remove_session(session);
  std::lock_guard lock(mutex_);
  session_.clear();
  return path;
}

}  // namespace millrace
