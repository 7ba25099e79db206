// The writing side of packed_file.h.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/json.h"
#include "formats/packed_file.h"

namespace millrace {
namespace {

constexpr std::string_view kPartSuffix = ".part";
constexpr std::size_t kDataAlignment = 64;
constexpr std::size_t kWriteBytes = 16u << 20;  // of one system call

Status failed(int number, const std::string& path, std::string_view action) {
  const StatusCode code = number == ENOSPC || number == EDQUOT || number == EFBIG  ? StatusCode::kResourceExhausted
                          : number == EACCES || number == EPERM || number == EROFS ? StatusCode::kPermissionDenied
                                                                                   : StatusCode::kInternal;
  return error(code, "{}: cannot {}: {}", path, action, std::strerror(number));
}

// Whether a file begins as header_text() begins: of this format, of any version. A file with other first bytes
// belongs to the user, whatever its name is.
bool has_packed_header(int fd) {
  constexpr std::string_view kBegin = R"({"__metadata__":{"format":"millrace-packed-)";
  char bytes[kBegin.size()];
  const ssize_t size = ::pread(fd, bytes, sizeof bytes, sizeof(uint64_t));
  return size == static_cast<ssize_t>(sizeof bytes) && std::string_view(bytes, sizeof bytes) == kBegin;
}

bool has_packed_header(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return false;
  const bool found = has_packed_header(fd);
  ::close(fd);
  return found;
}

// NAME.part, open for this process alone. Goes away with the object unless it was kept.
class Part {
 public:
  ~Part() {
    if (fd_ < 0) return;
    if (!kept_) (void)::unlink(path_.c_str());  // before the lock goes: the part is still this process's
    ::close(fd_);
  }

  Status open(const std::string& path) {
    path_ = path;
    const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return failed(errno, path, "make it");
    struct stat ours {
    }, at_path{};
    // Between open and lock another writer may have renamed or removed what we hold.
    const bool locked = ::flock(fd, LOCK_EX | LOCK_NB) == 0;
    const int lock_error = errno;
    const bool same = locked && ::fstat(fd, &ours) == 0 && ::lstat(path.c_str(), &at_path) == 0 &&
                      ours.st_ino == at_path.st_ino && ours.st_dev == at_path.st_dev;
    if (!same) {
      const Status status = locked || lock_error == EWOULDBLOCK
                                ? error(StatusCode::kConflict, "{}: another process writes it", path)
                                : failed(lock_error, path, "lock it");
      ::close(fd);
      return status;
    }
    if (ours.st_size > 0 && !has_packed_header(fd)) {
      ::close(fd);
      return error(StatusCode::kConflict, "{}: is not a file of this cache; wanted it removed or renamed", path);
    }
    fd_ = fd;
    if (::ftruncate(fd_, 0) != 0) return failed(errno, path_, "empty it");
    return ok_status();
  }

  // Asks for all of the space at once, so that a full disk is known before much is written.
  Status reserve(uint64_t size_bytes) {
    if (::fallocate(fd_, 0, 0, static_cast<off_t>(size_bytes)) == 0) return ok_status();
    const int number = errno;
    if (number == EOPNOTSUPP || number == ENOSYS || number == EINTR) return ok_status();
    return failed(number, path_, fmt::format("get {} bytes for it", size_bytes));
  }

  Status write(const std::byte* from, std::size_t size) {
    while (size > 0) {
      const ssize_t n = ::write(fd_, from, std::min(size, kWriteBytes));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return failed(errno, path_, "write it");
      from += n;
      size -= static_cast<std::size_t>(n);
    }
    return ok_status();
  }

  Status keep_as(const std::string& path) {
    if (::fsync(fd_) != 0) return failed(errno, path_, "sync it");
    if (::rename(path_.c_str(), path.c_str()) != 0) return failed(errno, path, "rename its part");
    kept_ = true;
    // So that the name survives a crash as well; where the system cannot, the file is there or is not.
    const std::string folder = std::filesystem::path(path).parent_path().string();
    const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
      (void)::fsync(fd);
      ::close(fd);
    }
    return ok_status();
  }

 private:
  std::string path_;
  int fd_ = -1;
  bool kept_ = false;
};

std::string header_text(const std::string& key, const std::string& source, std::span<const PackedRun> runs,
                        ThreadPool& pool) {
  std::string out = "{\"__metadata__\":{";
  const auto add = [&out](std::string_view name, std::string_view value) {
    if (out.back() != '{') out += ',';
    json_append_string(out, name);
    out += ':';
    json_append_string(out, value);
  };
  add("format", kPackedFormat);
  add("key", key);
  add("source", source);
  for (const PackedRun& run : runs) {
    add("run:" + run.name, fmt::format("{} {:016x}", run.made_of, packed_run_sum(key, run, pool)));
  }
  out += '}';
  uint64_t at = 0;
  for (const PackedRun& run : runs) {
    out += ',';
    json_append_string(out, run.name);
    out += fmt::format(R"(:{{"dtype":"U8","shape":[{}],"data_offsets":[{},{}]}})", run.bytes.size(), at,
                       at + run.bytes.size());
    at += run.bytes.size();
  }
  out += '}';
  out.append((kDataAlignment - (8 + out.size()) % kDataAlignment) % kDataAlignment, ' ');
  std::string length;
  for (int i = 0; i < 8; ++i) length.push_back(static_cast<char>(out.size() >> (8 * i) & 0xFF));
  return length + out;
}

bool ends_with_part(const std::string& name) {
  return name.ends_with(std::string(kPackedSuffix) + std::string(kPartSuffix));
}

}  // namespace

Status write_packed_file(const std::string& path, const std::string& key, const std::string& source,
                         std::span<const PackedRun> runs, ThreadPool& pool, const ProgressFn& progress) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return failed(errno, folder, "make the folder");
  Part part;
  RETURN_IF_ERROR(part.open(path + std::string(kPartSuffix)));
  const std::string header = header_text(key, source, runs, pool);
  uint64_t all = header.size();
  for (const PackedRun& run : runs) all += run.bytes.size();
  // The header first: it marks the file as the cache's, should the process end while it writes.
  RETURN_IF_ERROR(part.write(reinterpret_cast<const std::byte*>(header.data()), header.size()));
  RETURN_IF_ERROR(part.reserve(all));
  uint64_t done = header.size();
  for (const PackedRun& run : runs) {
    if (progress) progress(done, all);
    RETURN_IF_ERROR(part.write(run.bytes.data(), run.bytes.size()));
    done += run.bytes.size();
  }
  if (progress) progress(done, all);
  return part.keep_as(path);
}

void mark_packed_file_used(const std::string& path) { (void)::utimensat(AT_FDCWD, path.c_str(), nullptr, 0); }

std::vector<std::string> trim_packed_files(const std::string& folder, std::size_t most) {
  namespace fs = std::filesystem;
  std::vector<std::pair<fs::file_time_type, std::string>> files;
  std::vector<std::string> removed;
  std::error_code code;
  for (fs::directory_iterator at(folder, code), end; !code && at != end; at.increment(code)) {
    const std::string path = at->path().string();
    std::error_code gone;
    if (!ends_with_part(path) && !path.ends_with(kPackedSuffix)) continue;
    if (!has_packed_header(path)) continue;
    if (ends_with_part(path)) {
      Part part;
      if (part.open(path).ok()) removed.push_back(path);  // no process writes it: removed with the object
    } else {
      const auto time = fs::last_write_time(at->path(), gone);
      if (!gone) files.emplace_back(time, path);
    }
  }
  std::sort(files.rbegin(), files.rend());
  for (std::size_t i = most; i < files.size(); ++i) {
    if (::unlink(files[i].second.c_str()) == 0) removed.push_back(files[i].second);
  }
  return removed;
}

}  // namespace millrace
