#include "app/keys.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace millrace {
namespace {

Status check_key(const std::string& key, std::string_view option) {
  if (key.empty() || key.size() > kMaxKeyBytes) {
    return invalid_argument("--{}: the key has {} bytes; wanted 1 to {}", option, key.size(), kMaxKeyBytes);
  }
  if (std::any_of(key.begin(), key.end(), [](char c) { return c <= ' ' || c > '~'; })) {
    return invalid_argument(
        "--{}: the key has a character that no HTTP header field carries; wanted printable ASCII "
        "characters without spaces",
        option);
  }
  return ok_status();
}

bool is_given(const ServeOptions& options, const char* option) {
  return std::find(options.given.begin(), options.given.end(), option) != options.given.end();
}

Status check_file(const std::string& path, int file) {
  struct stat info {};
  if (::fstat(file, &info) != 0 || !S_ISREG(info.st_mode)) {
    return invalid_argument("--admin-api-key-file: {} is not a regular file", path);
  }
  if (info.st_uid != ::geteuid() && info.st_uid != 0) {
    return error(StatusCode::kPermissionDenied,
                 "--admin-api-key-file: {} belongs to user {}; wanted user {}, who runs the server, or root", path,
                 info.st_uid, ::geteuid());
  }
  if ((info.st_mode & 077) == 0) return ok_status();
  return error(StatusCode::kPermissionDenied,
               "--admin-api-key-file: {} has mode {:04o}; wanted 0600: no group, no others", path,
               info.st_mode & 07777);
}

Result<std::string> read_key(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // of a FIFO, open waits for a writer
  if (file < 0) {
    return error(errno == ENOENT ? StatusCode::kNotFound : StatusCode::kPermissionDenied,
                 "--admin-api-key-file: cannot read {}: {}", path, std::strerror(errno));
  }
  Status status = check_file(path, file);
  std::string key(kMaxKeyBytes + 2, '\0');
  const ssize_t bytes = status.ok() ? ::read(file, key.data(), key.size()) : 0;
  if (bytes < 0) status = internal_error("--admin-api-key-file: cannot read {}: {}", path, std::strerror(errno));
  ::close(file);
  RETURN_IF_ERROR(status);
  key.resize(static_cast<std::size_t>(bytes));
  if (key.ends_with('\n')) key.pop_back();
  return key;
}

}  // namespace

Status load_keys(ServeOptions& options) {
  const bool has_api_key = is_given(options, "api-key") || !options.api_key.empty();
  if (has_api_key) RETURN_IF_ERROR(check_key(options.api_key, "api-key"));
  const bool from_file = is_given(options, "admin-api-key-file") || !options.admin_api_key_file.empty();
  if (from_file) {
    ASSIGN_OR_RETURN(options.admin_api_key, read_key(options.admin_api_key_file));
  }
  if (options.admin_without_key && has_api_key) {
    return invalid_argument("--admin-without-key with --api-key; wanted one of them: with a key, admin routes take it");
  }
  if (!from_file && !is_given(options, "admin-api-key") && options.admin_api_key.empty()) return ok_status();
  const char* option = from_file ? "admin-api-key-file" : "admin-api-key";
  RETURN_IF_ERROR(check_key(options.admin_api_key, option));
  if (options.admin_api_key == options.api_key) {
    return invalid_argument("--{}: the key is that of --api-key; wanted another, or none: then admin routes take that",
                            option);
  }
  return ok_status();
}

}  // namespace millrace
