#include "relay/shm/shared_memory.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace millrace::shm {
namespace {

#ifndef MFD_NOEXEC_SEAL
constexpr unsigned MFD_NOEXEC_SEAL = 0x0008U;  // Linux 6.3
#endif

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;

Status exhausted(const char* what, int code) {
  return error(StatusCode::kResourceExhausted, "shm relay: {}: {}", what, std::strerror(code));
}

}  // namespace

void Fd::reset() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

void Mapping::reset() {
  if (data_ != nullptr) ::munmap(data_, size_bytes_);
  data_ = nullptr;
  size_bytes_ = 0;
}

Result<Mapping> Mapping::make(const Fd& memfd, std::size_t size_bytes, bool writable) {
  // MAP_SHARED: with MAP_PRIVATE a reader would not be certain to see what the writer writes later.
  void* at = ::mmap(nullptr, size_bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, memfd.get(), 0);
  if (at == MAP_FAILED) return exhausted(fmt::format("cannot map {} bytes", size_bytes).c_str(), errno);
  // As hints: a kernel that does not know them only keeps the pages in a child or a core file.
  (void)::madvise(at, size_bytes, MADV_DONTFORK);
  (void)::madvise(at, size_bytes, MADV_DONTDUMP);
  Mapping mapping;
  mapping.data_ = static_cast<std::byte*>(at);
  mapping.size_bytes_ = size_bytes;
  return mapping;
}

Result<Fd> make_memfd(const char* name, std::size_t size_bytes) {
  Fd memfd(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL));
  // Before Linux 6.3, which does not know the flag; from then on a memfd without it is logged by the kernel.
  if (!memfd.valid() && errno == EINVAL) memfd = Fd(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memfd.valid()) return exhausted("memfd_create", errno);
  if (::ftruncate(memfd.get(), static_cast<off_t>(size_bytes)) != 0) {
    return exhausted(fmt::format("cannot size a memfd to {} bytes", size_bytes).c_str(), errno);
  }
  // With F_SEAL_SEAL the seals are final, also for a reader, whose descriptor of the hold table is writable (fcntl(2)).
  if (::fcntl(memfd.get(), F_ADD_SEALS, kSizeSeals | F_SEAL_SEAL) != 0) {
    return error(StatusCode::kUnsupported, "shm relay: cannot seal a memfd: {}", std::strerror(errno));
  }
  return memfd;
}

Status reserve_pages(const Fd& memfd, std::size_t offset, std::size_t size_bytes) {
  // Not posix_fallocate(): where a file system cannot do it, that one writes to the pages, which may raise SIGBUS.
  int result = 0;
  do {
    result = ::fallocate(memfd.get(), 0, static_cast<off_t>(offset), static_cast<off_t>(size_bytes));
  } while (result != 0 && errno == EINTR);
  if (result == 0) return ok_status();
  return exhausted(fmt::format("no memory for {} bytes", size_bytes).c_str(), errno);
}

void drop_pages(const Fd& memfd, std::size_t offset, std::size_t size_bytes) {
  // Punching a hole keeps the size, as the seals want it. A failure costs memory alone: the pages stay.
  (void)::fallocate(memfd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                    static_cast<off_t>(size_bytes));
}

Result<Fd> read_only(const Fd& memfd) {
  // A new open file of the same memory, proc_pid_fd(5); dup() would share the writer's, which may write.
  Fd opened(::open(fmt::format("/proc/self/fd/{}", memfd.get()).c_str(), O_RDONLY | O_CLOEXEC));
  if (opened.valid()) return opened;
  if (errno == EMFILE || errno == ENFILE) return exhausted("cannot open a memfd for reading", errno);
  return error(StatusCode::kUnsupported, "shm relay: cannot open a memfd for reading through /proc/self/fd: {}",
               std::strerror(errno));
}

Status check_memfd(const Fd& memfd, std::size_t size_bytes) {
  const int seals = ::fcntl(memfd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSizeSeals) != kSizeSeals) {
    return invalid_argument("shm relay: a peer sent memory with seals {}; wanted {} at least", seals, kSizeSeals);
  }
  struct stat facts {};
  if (::fstat(memfd.get(), &facts) != 0 || static_cast<uint64_t>(facts.st_size) != size_bytes) {
    return invalid_argument("shm relay: a peer sent memory of {} bytes; wanted {}", facts.st_size, size_bytes);
  }
  return ok_status();
}

}  // namespace millrace::shm
