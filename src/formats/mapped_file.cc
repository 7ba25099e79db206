#include "formats/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

namespace millrace {
namespace {

constexpr std::size_t kPageBytes = 64u << 10;  // a multiple of every page size that processors here have
constexpr std::size_t kReadAheadBytes = 8u << 20;
constexpr std::size_t kPrefaultStepBytes = 8u << 20;  // between two calls of the progress function
#ifdef MADV_POPULATE_READ
constexpr int kPopulateRead = MADV_POPULATE_READ;
#else
constexpr int kPopulateRead = 22;  // Linux 5.14; older kernels answer EINVAL
#endif

Status io_error(std::string_view path, std::string_view action, int number) {
  const StatusCode code = number == ENOENT || number == ENOTDIR ? StatusCode::kNotFound
                          : number == EACCES || number == EPERM ? StatusCode::kPermissionDenied
                          : number == ENOMEM                    ? StatusCode::kResourceExhausted
                                                                : StatusCode::kInternal;
  return error(code, "{}: cannot {}: {}", path, action, std::strerror(number));
}

int64_t nanoseconds(const struct timespec& time) {
  return static_cast<int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

int64_t now_ns() {
  struct timespec now {};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return nanoseconds(now);
}

Status shrunk(std::string_view path, uint64_t seen, uint64_t wanted) {
  return error(StatusCode::kConflict, "{}: the file shrank while it was loaded: {} bytes; wanted {}", path, seen,
               wanted);
}

// Reads size bytes at `offset`; a short file is kConflict, since the size was taken from this very descriptor.
Status read_exactly(int fd, std::string_view path, std::byte* out, std::size_t size, std::size_t offset) {
  std::size_t done = 0;
  while (done < size) {
    const ssize_t n = ::pread(fd, out + done, size - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return io_error(path, "read", errno);
    if (n == 0) return shrunk(path, offset + done, offset + size);
    done += static_cast<std::size_t>(n);
  }
  return ok_status();
}

}  // namespace

Result<MappedFile> MappedFile::open(const std::string& path, MapMode mode, uint64_t max_bytes) {
  MappedFile file;
  file.path_ = path;
  file.mode_ = mode;
  // O_NONBLOCK: opening a FIFO must not hang; it has no effect on regular files.
  file.fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file.fd_ < 0) return io_error(path, "open", errno);
  struct stat info {};
  if (::fstat(file.fd_, &info) != 0) return io_error(path, "stat", errno);
  if (!S_ISREG(info.st_mode)) {
    return invalid_argument("{}: is {}; wanted a regular file", path,
                            S_ISDIR(info.st_mode) ? "a directory" : "a special file");
  }
  const auto size = static_cast<uint64_t>(info.st_size);
  if (size > max_bytes) {
    return error(StatusCode::kTooLarge, "{}: has {} bytes; wanted at most {}", path, size, max_bytes);
  }
  file.size_bytes_ = size;
  file.device_ = static_cast<uint64_t>(info.st_dev);
  file.inode_ = static_cast<uint64_t>(info.st_ino);
  file.modified_ns_ = nanoseconds(info.st_mtim);
  file.changed_ns_ = nanoseconds(info.st_ctim);
  file.settled_ = now_ns() - file.changed_ns_ >= kStampSettledNs;
  if (size > 0) RETURN_IF_ERROR(mode == MapMode::kMap ? file.map() : file.copy());
  return file;
}

Status MappedFile::map() {
  void* address = ::mmap(nullptr, size_bytes_, PROT_READ, MAP_PRIVATE, fd_, 0);
  if (address == MAP_FAILED) return io_error(path_, "map", errno);
  data_ = static_cast<const std::byte*>(address);
  // Advice only: a kernel that refuses it loads just as well.
  (void)::madvise(address, size_bytes_, MADV_SEQUENTIAL);
  return ok_status();
}

Status MappedFile::copy() {
  void* address = ::mmap(nullptr, size_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) return io_error(path_, fmt::format("take {} bytes of memory for it", size_bytes_), errno);
  data_ = static_cast<const std::byte*>(address);
  RETURN_IF_ERROR(read_exactly(fd_, path_, static_cast<std::byte*>(address), size_bytes_, 0));
  (void)::mprotect(address, size_bytes_, PROT_READ);
  return ok_status();
}

void MappedFile::close() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_bytes_);
  if (fd_ >= 0) ::close(fd_);
  data_ = nullptr;
  size_bytes_ = 0;
  fd_ = -1;
}

MappedFile::MappedFile(MappedFile&& other) noexcept { *this = std::move(other); }

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this == &other) return *this;
  close();
  path_ = std::move(other.path_);
  data_ = std::exchange(other.data_, nullptr);
  size_bytes_ = std::exchange(other.size_bytes_, 0);
  mode_ = other.mode_;
  fd_ = std::exchange(other.fd_, -1);
  device_ = other.device_;
  inode_ = other.inode_;
  modified_ns_ = other.modified_ns_;
  changed_ns_ = other.changed_ns_;
  settled_ = other.settled_;
  return *this;
}

MappedFile::~MappedFile() { close(); }

Status MappedFile::read(std::size_t begin, std::span<std::byte> to) const {
  CHECK(begin <= size_bytes_ && to.size() <= size_bytes_ - begin);
  if (to.empty()) return ok_status();
  // Several threads that read one file in turns defeat the system's own reading ahead.
  const std::size_t end = begin + to.size();
  if (begin / kReadAheadBytes != end / kReadAheadBytes) {
    (void)::posix_fadvise(fd_, static_cast<off_t>(end), static_cast<off_t>(kReadAheadBytes), POSIX_FADV_WILLNEED);
  }
  return read_exactly(fd_, path_, to.data(), to.size(), begin);
}

void MappedFile::release(std::size_t begin, std::size_t size) const {
  CHECK(begin <= size_bytes_ && size <= size_bytes_ - begin);
  if (mode_ != MapMode::kMap || data_ == nullptr) return;
  const std::size_t first = (begin + kPageBytes - 1) / kPageBytes * kPageBytes;
  const std::size_t last = (begin + size) / kPageBytes * kPageBytes;
  if (first < last) (void)::madvise(const_cast<std::byte*>(data_) + first, last - first, MADV_DONTNEED);
}

Status MappedFile::prefault(std::size_t begin, std::size_t size, const ProgressFn& progress) const {
  CHECK(begin <= size_bytes_ && size <= size_bytes_ - begin);
  if (progress) progress(0, size);
  const std::size_t end = begin + size;
  std::vector<std::byte> scratch;  // only where the kernel is too old to populate
  for (std::size_t at = begin / kPageBytes * kPageBytes; at < end;) {
    const std::size_t step = std::min(kPrefaultStepBytes, end - at);
    // Populating answers EFAULT where touching the page would raise SIGBUS. `at` stays a multiple of the page size.
    if (mode_ == MapMode::kMap && scratch.empty() &&
        ::madvise(const_cast<std::byte*>(data_) + at, step, kPopulateRead) != 0) {
      if (errno == EINTR) continue;
      if (errno == EFAULT) {
        RETURN_IF_ERROR(verify_unchanged());
        return io_error(path_, "read", EIO);
      }
      scratch.resize(kPrefaultStepBytes);
    }
    // Reading the file warms the page cache, so that the faults to come are cheap, and reports errors as errors.
    if (!scratch.empty()) RETURN_IF_ERROR(read_exactly(fd_, path_, scratch.data(), step, at));
    at += step;
    if (progress) progress(std::min(at, end) - begin, size);
  }
  if (mode_ != MapMode::kMap || size == 0) return ok_status();
  // From here on the pages are read again and again: the kernel must not drop them behind the reader.
  (void)::madvise(const_cast<std::byte*>(data_), size_bytes_, MADV_NORMAL);
  return verify_unchanged();
}

Status MappedFile::verify_unchanged() const {
  if (fd_ < 0) return ok_status();
  struct stat info {};
  if (::fstat(fd_, &info) != 0) return io_error(path_, "stat", errno);
  if (static_cast<uint64_t>(info.st_size) < size_bytes_) {
    return shrunk(path_, static_cast<uint64_t>(info.st_size), size_bytes_);
  }
  if (static_cast<uint64_t>(info.st_size) != size_bytes_ || nanoseconds(info.st_mtim) != modified_ns_) {
    return error(StatusCode::kConflict,
                 "{}: the file changed while it was loaded: {} bytes; wanted {} and the same "
                 "modification time",
                 path_, info.st_size, size_bytes_);
  }
  // The same path may by now name another file: our mapping is of the old one, which is whole, but not what was asked.
  if (::stat(path_.c_str(), &info) != 0) return io_error(path_, "stat again", errno);
  if (static_cast<uint64_t>(info.st_dev) != device_ || static_cast<uint64_t>(info.st_ino) != inode_) {
    return error(StatusCode::kConflict, "{}: the file was replaced while it was loaded: inode {}; wanted {}", path_,
                 info.st_ino, inode_);
  }
  return ok_status();
}

Result<std::string> read_small_file(const std::string& path, uint64_t max_bytes) {
  ASSIGN_OR_RETURN(MappedFile file, MappedFile::open(path, MapMode::kCopy, max_bytes));
  if (file.size_bytes() == 0) return std::string();
  return std::string(reinterpret_cast<const char*>(file.bytes().data()), file.size_bytes());
}

Result<bool> file_exists(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0) return true;
  if (errno == ENOENT || errno == ENOTDIR) return false;
  return io_error(path, "stat", errno);
}

}  // namespace millrace
