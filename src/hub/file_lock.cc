#include "hub/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <thread>

#include "hub/cache.h"

namespace millrace::hub {
namespace {

constexpr std::chrono::milliseconds kTick{100};
constexpr mode_t kLockMode = 0664;  // of the other tools' locks

// Another process may have removed the file between open and flock.
bool is_file_at(int fd, const std::string& path) {
  struct stat mine {
  }, current{};
  return ::fstat(fd, &mine) == 0 && ::stat(path.c_str(), &current) == 0 && mine.st_ino == current.st_ino &&
         mine.st_dev == current.st_dev;
}

}  // namespace

FileLock& FileLock::operator=(FileLock&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

FileLock::~FileLock() {
  if (fd_ >= 0) ::close(fd_);
}

Result<std::optional<FileLock>> FileLock::try_take(const std::string& path, bool shared) {
  RETURN_IF_ERROR(make_folders(std::filesystem::path(path).parent_path().string()));
  FileLock lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, kLockMode));
  if (lock.fd_ < 0) return file_error(errno, path, "open the lock");
  if (::flock(lock.fd_, (shared ? LOCK_SH : LOCK_EX) | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK || errno == EINTR) return std::optional<FileLock>();
    return file_error(errno, path, "take the lock");
  }
  if (!is_file_at(lock.fd_, path)) return std::optional<FileLock>();
  return std::optional<FileLock>(std::move(lock));
}

Result<FileLock> FileLock::wait(const std::string& path, bool shared, const std::string& note,
                                const TransferControl& control) {
  const auto end = std::chrono::steady_clock::now() + kLongestLockWait;
  for (bool noted = false; !control.cancelled();) {
    ASSIGN_OR_RETURN(std::optional<FileLock> lock, try_take(path, shared));
    if (lock) return std::move(*lock);
    if (std::chrono::steady_clock::now() >= end) {
      return error(StatusCode::kDeadline, "{}: another process has held the lock for {} h; wanted it to end", path,
                   kLongestLockWait.count());
    }
    if (!std::exchange(noted, true)) control.note(note);
    std::this_thread::sleep_for(kTick);
  }
  return Status(StatusCode::kCancelled, "interrupted");
}

}  // namespace millrace::hub
