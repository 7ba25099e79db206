#include "app/secret_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/file_descriptor.h"

namespace millrace {
namespace {

Status check_file(const std::string& path, const char* option, int file) {
  struct stat info {};
  if (::fstat(file, &info) != 0 || !S_ISREG(info.st_mode)) {
    return invalid_argument("--{}: {} is not a regular file", option, path);
  }
  if (info.st_uid != ::geteuid() && info.st_uid != 0) {
    return error(StatusCode::kPermissionDenied,
                 "--{}: {} belongs to user {}; wanted user {}, who runs the server, or root", option, path, info.st_uid,
                 ::geteuid());
  }
  const bool given = info.st_uid == 0 && ::geteuid() != 0;
  if ((info.st_mode & (given ? 037 : 077)) == 0) return ok_status();
  return error(StatusCode::kPermissionDenied, "--{}: {} has mode {:04o}; wanted {}", option, path, info.st_mode & 07777,
               given ? "0440 at most: no others" : "0600: no group, no others");
}

}  // namespace

Result<std::string> read_secret(const std::string& path, const char* option) {
  // Without O_NONBLOCK, open of a FIFO waits for a writer.
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) {
    return error(errno == ENOENT ? StatusCode::kNotFound : StatusCode::kPermissionDenied, "--{}: cannot read {}: {}",
                 option, path, std::strerror(errno));
  }
  RETURN_IF_ERROR(check_file(path, option, file.get()));
  std::string secret(kMaxSecretBytes + 2, '\0');
  const ssize_t bytes = ::read(file.get(), secret.data(), secret.size());
  if (bytes < 0) return internal_error("--{}: cannot read {}: {}", option, path, std::strerror(errno));
  secret.resize(static_cast<std::size_t>(bytes));
  if (secret.ends_with('\n')) secret.pop_back();
  return secret;
}

}  // namespace millrace
