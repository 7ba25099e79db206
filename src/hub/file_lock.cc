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

// The other object releases what this one held, when it ends.
FileLock& FileLock::operator=(FileLock&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

FileLock::~FileLock() {
  // Closing the last descriptor of the open file releases the lock (flock(2)), as the end of the process does, so a
  // crash leaves none behind. The file stays: removing it would let two processes lock two files of one name.
  if (fd_ >= 0) ::close(fd_);
}

Result<std::optional<FileLock>> FileLock::try_take(const std::string& path, bool shared) {
  RETURN_IF_ERROR(make_folders(std::filesystem::path(path).parent_path().string()));
  // O_CREAT without O_EXCL: the other tools leave their lock files as well, and it is the lock that counts.
  FileLock lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, kLockMode));
  if (lock.fd_ < 0) return file_error(errno, path, "open the lock");
  // flock and not fcntl: it is what the Hugging Face tools take (filelock's UnixFileLock), and the two kinds do not see
  // each other.
  if (::flock(lock.fd_, (shared ? LOCK_SH : LOCK_EX) | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK || errno == EINTR) return std::optional<FileLock>();
    return file_error(errno, path, "take the lock");
  }
  // Locked, but no longer the file that others open: the next attempt makes a new one.
  if (!is_file_at(lock.fd_, path)) return std::optional<FileLock>();
  return std::optional<FileLock>(std::move(lock));
}

Result<FileLock> FileLock::wait(const std::string& path, bool shared, const std::string& note,
                                const TransferControl& control) {
  const auto end = std::chrono::steady_clock::now() + kLongestLockWait;
  // Polls: a blocking flock() could be interrupted by a signal only, and these threads have to look at `cancelled`.
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
