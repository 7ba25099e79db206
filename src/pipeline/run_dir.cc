#include "pipeline/run_dir.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
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
constexpr std::size_t kMaxPathBytes = 80;  // a socket's path holds 107 bytes, its file name included
constexpr int kYoungSeconds = 60;          // a folder without a lock file may be one that is being made right now

std::string temp_root() {
  const char* root = std::getenv("TMPDIR");
  return root && *root ? root : "/tmp";
}

int lock_file(const std::string& dir, int flags) {
  const int fd = ::open((dir + "/" + kLockName).c_str(), flags | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd >= 0 && ::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    ::close(fd);
    errno = EWOULDBLOCK;
    return -1;
  }
  return fd;
}

bool is_dead(const std::string& dir) {
  struct stat info {};
  if (::lstat(dir.c_str(), &info) != 0 || !S_ISDIR(info.st_mode) || info.st_uid != ::geteuid()) return false;
  const int fd = lock_file(dir, O_RDWR);
  if (fd >= 0) {
    ::close(fd);
    return true;
  }
  return errno == ENOENT && std::time(nullptr) - info.st_mtime > kYoungSeconds;
}

void sweep_dead() {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(temp_root(), error)) {
    const std::string path = entry.path().string();
    if (entry.path().filename().string().starts_with(kPrefix) && is_dead(path)) RunDir::remove(path);
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
  const int fd = lock_file(path, O_RDWR | O_CREAT | O_EXCL);
  if (fd < 0) return internal_error("cannot lock {}/{}: {}", path, kLockName, std::strerror(errno));
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
