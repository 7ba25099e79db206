#include "pipeline/run_dir.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <utility>

namespace millrace {
namespace {

namespace fs = std::filesystem;

constexpr char kPrefix[] = "millrace-";
constexpr char kLockName[] = "lock";
constexpr char kNewLockName[] = "lock.new";
constexpr std::size_t kMaxPathBytes = 80;  // a socket's path holds 107 bytes, its file name included
constexpr int kYoungSeconds = 60;          // a folder without a lock file may be one that is being made right now

std::string temp_root() {
  const char* root = std::getenv("TMPDIR");
  return root && *root ? root : "/tmp";
}

int lock_file(const std::string& path, int flags) {
  const int fd = ::open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd >= 0 && ::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    ::close(fd);
    errno = EWOULDBLOCK;
    return -1;
  }
  return fd;
}

// The lock gets its name when it is held already: a lock file that nobody holds is a dead one at every moment, also to
// an instance that starts at the same time.
int make_lock(const std::string& dir) {
  const std::string made = dir + "/" + kNewLockName;
  const int fd = lock_file(made, O_RDWR | O_CREAT | O_EXCL);
  if (fd < 0 || ::rename(made.c_str(), (dir + "/" + kLockName).c_str()) == 0) return fd;
  const int why = errno;
  ::close(fd);
  errno = why;
  return -1;
}

bool is_dead(const std::string& dir) {
  struct stat info {};
  if (::lstat(dir.c_str(), &info) != 0 || !S_ISDIR(info.st_mode) || info.st_uid != ::geteuid()) return false;
  const int fd = lock_file(dir + "/" + kLockName, O_RDWR);
  if (fd >= 0) {
    ::close(fd);
    return true;
  }
  return errno == ENOENT && std::time(nullptr) - info.st_mtime > kYoungSeconds;
}

void sweep_dead() {
  std::error_code error;
  fs::directory_iterator entry(temp_root(), error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const fs::path path = entry->path();
    if (path.filename().string().starts_with(kPrefix) && is_dead(path.string())) RunDir::remove(path.string());
  }
}

}  // namespace

Result<RunDir> RunDir::create() {
  sweep_dead();
  std::string path = temp_root() + "/" + kPrefix + "XXXXXX";
  if (path.size() > kMaxPathBytes) {
    return invalid_argument("the temporary folder's path {} has {} bytes; wanted at most {} (set TMPDIR)", temp_root(),
                            path.size(), kMaxPathBytes);
  }
  if (!::mkdtemp(path.data())) return internal_error("cannot make a folder {}: {}", path, std::strerror(errno));
  const int fd = make_lock(path);
  if (fd < 0) {
    Status status = internal_error("cannot lock {}/{}: {}", path, kLockName, std::strerror(errno));
    remove(path);
    return status;
  }
  return RunDir(std::move(path), fd);
}

RunDir::RunDir(RunDir&& other) noexcept : path_(std::move(other.path_)), lock_fd_(std::exchange(other.lock_fd_, -1)) {
  other.path_.clear();
}

RunDir::~RunDir() {
  if (lock_fd_ < 0) return;
  remove(path_);
  ::close(lock_fd_);
}

void RunDir::remove(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
}

}  // namespace millrace
