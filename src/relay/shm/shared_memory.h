// Memory that processes share without a name: memfds, sealed against every change of size, and their mappings.
//
// Nothing here ever stands in /dev/shm or any other folder; when the last descriptor and mapping are gone, by whatever
// way their processes ended, the kernel takes the memory back. What a reader is handed is a second opening of the memfd
// for reading only (read_only()), so the kernel refuses it a writable mapping. F_SEAL_FUTURE_WRITE would do the same,
// but it also forbids the writer to give pages back (fallocate PUNCH_HOLE fails with EPERM), so it is not used.
//
// Mappings are left out of core files and of forked children: a child must not keep bytes alive, nor look like a
// holder.
//
// Thread safety: values; one thread at a time each.
#pragma once

#include <cstddef>
#include <utility>

#include "base/status.h"

namespace millrace::shm {

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  ~Fd() { reset(); }
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  void reset();

 private:
  int fd_ = -1;
};

class Mapping {
 public:
  Mapping() = default;
  ~Mapping() { reset(); }
  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_bytes_(std::exchange(other.size_bytes_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    if (this != &other) {
      reset();
      data_ = std::exchange(other.data_, nullptr);
      size_bytes_ = std::exchange(other.size_bytes_, 0);
    }
    return *this;
  }
  // All of a memfd. kResourceExhausted: no address space left.
  static Result<Mapping> make(const Fd& memfd, std::size_t size_bytes, bool writable);

  std::byte* data() const { return data_; }
  std::size_t size_bytes() const { return size_bytes_; }
  void reset();

 private:
  std::byte* data_ = nullptr;
  std::size_t size_bytes_ = 0;
};

// A memfd of a sealed size, without pages. kResourceExhausted: the kernel has no memory or no descriptor.
Result<Fd> make_memfd(const char* name, std::size_t size_bytes);
// Gives [offset, offset + size) its pages now, so that touching them cannot fail later. kResourceExhausted: no memory.
Status reserve_pages(const Fd& memfd, std::size_t offset, std::size_t size_bytes);
// Takes the pages back; the range reads as zeros.
void drop_pages(const Fd& memfd, std::size_t offset, std::size_t size_bytes);
// The same memory through a descriptor that cannot write. kUnsupported: /proc is not there.
Result<Fd> read_only(const Fd& memfd);
// What came from another process: kInvalidArgument unless it is a memfd of just this size that can neither grow nor
// shrink. Without these seals its owner could cut it, and reading would end in SIGBUS.
Status check_memfd(const Fd& memfd, std::size_t size_bytes);

}  // namespace millrace::shm
