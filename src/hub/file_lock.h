// FileLock: an advisory lock of a file (flock), as the Hugging Face tools take it around a blob that they write.
//
// Owner: its holder; the destructor releases it. Thread safety: one thread.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "base/status.h"
#include "hub/retry.h"

namespace millrace::hub {

inline constexpr std::chrono::hours kLongestLockWait{24};  // a large model by a slow line

class FileLock {
 public:
  // Makes the file, and folders above it. Waits while another holds it, after one note. kDeadline, kCancelled.
  static Result<FileLock> wait(const std::string& path, bool shared, const std::string& note,
                               const TransferControl& control);
  // nullopt: another holds it.
  static Result<std::optional<FileLock>> try_take(const std::string& path, bool shared);

  FileLock(FileLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileLock& operator=(FileLock&& other) noexcept;
  ~FileLock();

 private:
  explicit FileLock(int fd) : fd_(fd) {}
  int fd_ = -1;
};

}  // namespace millrace::hub
