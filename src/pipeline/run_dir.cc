#include "pipeline/run_dir.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <utility>
#include <vector>

namespace millrace {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "run-";
constexpr std::string_view kMarker = "millrace run folder\n";  // what a lock file of this program holds
constexpr char kLockName[] = "lock";
constexpr char kNewLockName[] = "lock.new";
constexpr std::string_view kSocketSuffix = ".sock";
constexpr int kMaxCreateTries = 64;       // another instance that ends removes the empty root in between
constexpr std::size_t kMaxDirBytes = 80;  // a socket's path holds 107 bytes, its file name included

const char* environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

// lstat() and not stat(): a link of another user in /tmp must not lead a removal into one of this user's folders.
bool is_folder_of_user(const std::string& path) {
  struct stat info {};
  return ::lstat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == ::geteuid();
}

Status make_root(const std::string& root) {
  if (::mkdir(root.c_str(), 0700) != 0 && errno != EEXIST) {
    return internal_error("cannot create the folder {}: {}; set TMPDIR to a folder that this user can write to", root,
                          std::strerror(errno));
  }
  struct stat info {};
  if (::lstat(root.c_str(), &info) != 0) {
    if (errno == ENOENT) return ok_status();  // removed again by another instance; make_folder() repeats
    return internal_error("cannot stat {}: {}", root, std::strerror(errno));
  }
  // /tmp is open to every user: a folder that another user made beforehand would give that user the sockets in it.
  if (!S_ISDIR(info.st_mode) || info.st_uid != ::geteuid() || (info.st_mode & 077) != 0) {
    return error(StatusCode::kPermissionDenied,
                 "{} has mode {:o} and owner {}; wanted a folder of user {} with mode 700. Remove it, or set TMPDIR",
                 root, info.st_mode & 07777, info.st_uid, ::geteuid());
  }
  return ok_status();
}

bool has_marker(int fd) {
  // One byte more, so that a longer file is not taken for a marker.
  char bytes[kMarker.size() + 1];
  const ssize_t size = ::pread(fd, bytes, sizeof bytes, 0);
  return size == static_cast<ssize_t>(kMarker.size()) && std::memcmp(bytes, kMarker.data(), kMarker.size()) == 0;
}

// The descriptor of the folder's marked lock file; -1: there is none.
int open_marked_lock(const std::string& dir) {
  // O_NONBLOCK: the name may be that of a pipe, whose open() would wait.
  const int fd = ::open((dir + "/" + kLockName).c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0 || has_marker(fd)) return fd;
  ::close(fd);
  return -1;
}

// The file is locked before it is renamed to its final name. So a lock file that can be locked belongs to a dead
// instance at every moment, also while another instance starts.
int make_lock(const std::string& dir) {
  const std::string made = dir + "/" + kNewLockName;
  const int fd = ::open(made.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return -1;
  // flock(2): the lock belongs to the open file. O_CLOEXEC keeps it out of child processes, or it would last as long as
  // the longest of them.
  if (::flock(fd, LOCK_EX | LOCK_NB) == 0 &&
      ::write(fd, kMarker.data(), kMarker.size()) == static_cast<ssize_t>(kMarker.size()) &&
      ::rename(made.c_str(), (dir + "/" + kLockName).c_str()) == 0) {
    return fd;
  }
  const int why = errno;
  ::unlink(made.c_str());
  ::close(fd);
  errno = why;
  return -1;
}

std::vector<std::string> entries(const std::string& folder) {
  std::vector<std::string> out;
  std::error_code code;
  fs::directory_iterator entry(folder, code);
  // Collected before anything is removed: what a walk shows of a folder that changes is not defined.
  for (; !code && entry != fs::directory_iterator(); entry.increment(code)) out.push_back(entry->path().string());
  return out;
}

void remove_sockets(const std::string& dir) {
  for (const std::string& path : entries(dir)) {
    struct stat info {};
    // By name and type: a folder that is ours only by mistake loses no file of its user's.
    if (path.ends_with(kSocketSuffix) && ::lstat(path.c_str(), &info) == 0 && S_ISSOCK(info.st_mode)) {
      ::unlink(path.c_str());
    }
  }
}

// The lock file goes after the sockets: a removal that is cut short is repeated by the next sweep.
void remove_marked(const std::string& dir) {
  remove_sockets(dir);
  ::unlink((dir + "/" + kLockName).c_str());
  ::rmdir(dir.c_str());
  ::rmdir(fs::path(dir).parent_path().c_str());  // the root; it stays where another run folder is in it
}

// Fills the XXXXXX of `pattern`, a path in `root`.
Status make_folder(const std::string& root, const std::string& pattern, std::string& path) {
  for (int i = 0; i < kMaxCreateTries; ++i) {
    RETURN_IF_ERROR(make_root(root));
    path = pattern;
    if (::mkdtemp(path.data()) != nullptr) return ok_status();
    if (errno != ENOENT) break;
  }
  return internal_error("cannot create a folder {}: {}", pattern, std::strerror(errno));
}

void sweep_dead(const std::string& root) {
  if (!is_folder_of_user(root)) return;
  for (const std::string& path : entries(root)) {
    if (!fs::path(path).filename().string().starts_with(kPrefix) || !is_folder_of_user(path)) continue;
    const int fd = open_marked_lock(path);
    if (fd < 0) continue;
    // With the lock held no other sweep removes the folder; it does nothing where one has removed it before.
    if (::flock(fd, LOCK_EX | LOCK_NB) == 0) remove_marked(path);
    ::close(fd);
  }
}

// nullptr: there is none of this user.
const char* runtime_dir() {
  const char* runtime = environment("XDG_RUNTIME_DIR");
  return runtime != nullptr && is_folder_of_user(runtime) ? runtime : nullptr;
}

}  // namespace

std::string RunDir::root_folder() {
  if (const char* runtime = runtime_dir(); runtime != nullptr) return std::string(runtime) + "/millrace";
  const char* temporary = environment("TMPDIR");
  return fmt::format("{}/millrace-{}", temporary != nullptr ? temporary : "/tmp", ::geteuid());
}

Result<RunDir> RunDir::create() {
  const std::string root = root_folder();
  const std::string pattern = root + "/" + std::string(kPrefix) + "XXXXXX";
  // Found here, with what to do, and not when the longest socket name fails to bind.
  if (pattern.size() > kMaxDirBytes) {
    return invalid_argument("the run folder's path {} has {} bytes; wanted at most {}. Set {} to a shorter path",
                            pattern, pattern.size(), kMaxDirBytes,
                            runtime_dir() != nullptr ? "XDG_RUNTIME_DIR" : "TMPDIR");
  }
  if (!root.starts_with('/')) {
    return invalid_argument("the run folder is {}, which TMPDIR sets; wanted a path that begins with '/'", root);
  }
  sweep_dead(root);
  std::string path;
  RETURN_IF_ERROR(make_folder(root, pattern, path));
  const int fd = make_lock(path);
  if (fd < 0) {
    Status status = internal_error("cannot lock {}/{}: {}", path, kLockName, std::strerror(errno));
    ::rmdir(path.c_str());
    return status;
  }
  return RunDir(std::move(path), fd);
}

RunDir::RunDir(RunDir&& other) noexcept : path_(std::move(other.path_)), lock_fd_(std::exchange(other.lock_fd_, -1)) {
  other.path_.clear();
}

RunDir::~RunDir() {
  if (lock_fd_ < 0) return;
  remove_marked(path_);
  ::close(lock_fd_);
}

void RunDir::remove(const std::string& path) {
  if (path.empty() || !is_folder_of_user(path)) return;
  const int fd = open_marked_lock(path);
  if (fd < 0) return;
  remove_marked(path);
  ::close(fd);
}

}  // namespace millrace
