#include "control/shared_key.h"

#include <fcntl.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <cerrno>

#include "base/file_descriptor.h"

namespace millrace {
namespace {

constexpr std::size_t kHexDigits = 2 * kSharedKeyBytes;
constexpr std::size_t kZ85Chars = 40;

int digit_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// explicit_bzero(3): a memset() of memory that is not read again may be left out by the compiler.
void wipe(std::string& text) { ::explicit_bzero(text.data(), text.size()); }

Status check_mode(const std::string& path, int fd) {
  struct stat info;
  // Of the open file and not of the path, which may name another file by now.
  if (::fstat(fd, &info) != 0) return internal_error("cannot look at {}: {}", path, ::strerror(errno));
  if (!S_ISREG(info.st_mode)) return invalid_argument("the key {} is not a regular file", path);
  if (info.st_uid != ::geteuid() && info.st_uid != 0) {
    return error(StatusCode::kPermissionDenied, "the key {} belongs to user {}; wanted this user, {}, or root", path,
                 info.st_uid, ::geteuid());
  }
  // An administrator may let a group read a key of root's, as Kubernetes mounts secrets for users other than root.
  const bool given = info.st_uid == 0 && ::geteuid() != 0;
  if ((info.st_mode & (given ? 037 : 077)) != 0) {
    return error(StatusCode::kPermissionDenied, "the key {} has mode {:04o}; wanted {}", path, info.st_mode & 07777,
                 given ? "0440 at most: no others" : "0600: no group, no others");
  }
  return ok_status();
}

}  // namespace

SharedKey::~SharedKey() { wipe(bytes_), wipe(curve_secret_); }

Result<SharedKey> SharedKey::parse(std::string_view hex) {
  if (hex.size() != kHexDigits) {
    return invalid_argument("the key has {} characters; wanted {} hexadecimal digits", hex.size(), kHexDigits);
  }
  SharedKey key;
  for (std::size_t i = 0; i < kHexDigits; i += 2) {
    const int high = digit_value(hex[i]), low = digit_value(hex[i + 1]);
    if (high < 0 || low < 0) return invalid_argument("the key has a character that is no hexadecimal digit");
    key.bytes_ += static_cast<char>(high << 4 | low);
  }
  // All bytes alike is a file of zeros or a placeholder, not a key.
  if (key.bytes_.find_first_not_of(key.bytes_[0]) == std::string::npos) {
    return invalid_argument("the key is one byte repeated; wanted {} random bytes", kSharedKeyBytes);
  }
  char secret[kZ85Chars + 1], open[kZ85Chars + 1];
  if (zmq_z85_encode(secret, reinterpret_cast<const uint8_t*>(key.bytes_.data()), kSharedKeyBytes) == nullptr ||
      zmq_curve_public(open, secret) != 0) {
    return error(StatusCode::kUnsupported, "this build of ZeroMQ has no CURVE: {}", zmq_strerror(zmq_errno()));
  }
  key.curve_secret_ = secret;
  key.curve_public_ = open;
  ::explicit_bzero(secret, sizeof secret);
  return key;
}

Result<SharedKey> SharedKey::load(const std::string& path) {
  // Not waiting: the path may name a pipe.
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) {
    const StatusCode code = errno == EACCES ? StatusCode::kPermissionDenied : StatusCode::kNotFound;
    return error(code, "cannot open the key {}: {}", path, ::strerror(errno));
  }
  RETURN_IF_ERROR(check_mode(path, file.get()));
  // One byte more than the digits and a newline, so that a longer file is seen to be longer.
  std::string text(kHexDigits + 2, '\0');
  ssize_t got = ::read(file.get(), text.data(), text.size());
  if (got < 0) return internal_error("cannot read the key {}: {}", path, ::strerror(errno));
  std::string_view hex(text.data(), static_cast<std::size_t>(got));
  if (hex.size() == kHexDigits + 1 && hex.back() == '\n') hex.remove_suffix(1);
  Result<SharedKey> key = parse(hex);
  wipe(text);
  if (!key.ok()) return key.status().with_prefix(path);
  return key;
}

Status SharedKey::generate(const std::string& path) {
  unsigned char bytes[kSharedKeyBytes];
  // From the kernel; so few bytes come whole or not at all.
  if (::getrandom(bytes, sizeof bytes, 0) != static_cast<ssize_t>(sizeof bytes)) {
    return internal_error("no random bytes: {}", ::strerror(errno));
  }
  // O_EXCL: of two processes that make a key one wins, and no link is followed to a file of another's choice.
  const FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (file.get() < 0) {
    const StatusCode code = errno == EEXIST ? StatusCode::kConflict : StatusCode::kNotFound;
    return error(code, "cannot make the key {}: {}", path, ::strerror(errno));
  }
  std::string text;
  for (const unsigned char byte : bytes) text += fmt::format("{:02x}", byte);
  text += '\n';
  const bool written = ::fchmod(file.get(), 0600) == 0 &&  // whatever the umask is
                       ::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
                       ::fsync(file.get()) == 0;
  const int problem = errno;
  wipe(text);
  ::explicit_bzero(bytes, sizeof bytes);
  if (written) return ok_status();
  // A part of a key is no key, and the next try would find the path in use.
  ::unlink(path.c_str());
  return internal_error("cannot write the key {}: {}", path, ::strerror(problem));
}

}  // namespace millrace
