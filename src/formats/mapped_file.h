// A read-only file in memory: a private mapping (the default), or a copy for file systems that cannot be trusted.
//
// SIGBUS policy: a mapping is only as good as the file under it. When another program truncates a mapped file, reading
// a page past the new end raises SIGBUS and ends the process. What is done about it:
//   - the size is taken from the open descriptor, never from the path, and the descriptor stays open;
//   - prefault() brings in every page with system calls that answer with an error where a plain read would fault;
//   - verify_unchanged() compares size, inode and modification time with those at open: call it after loading;
//   - MapMode::kCopy reads the bytes into anonymous memory, after which nothing can happen to them.
// A truncation after all that still kills the process. That is accepted: the process is supervised, and pages of a file
// that is being rewritten must not be served.
//
// Owner: the code that opened it; views into bytes() must not outlive it (moving it keeps them valid).
// Thread safety: const functions may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "base/status.h"

namespace millrace {

// Which bytes a file held when it was opened, to check later whether it still holds them. The system sets the time of
// change at every write to the file and its inode, and no program can set it back.
struct FileStamp {
  uint64_t inode = 0;
  uint64_t size_bytes = 0;
  int64_t modified_ns = 0;
  int64_t changed_ns = 0;
  // False for a file that changed less than kStampSettledNs before it was opened: its next change might carry the same
  // time.
  bool settled = false;
};
inline constexpr int64_t kStampSettledNs = 2'000'000'000;  // the coarsest clock of a file system

enum class MapMode : uint8_t { kMap = 0, kCopy = 1 };

// Called with (bytes done, bytes in all), the first time with 0, the last time with done == all.
using ProgressFn = std::function<void(uint64_t bytes_done, uint64_t bytes_total)>;

class MappedFile {
 public:
  // Errors name the path and the reason: kNotFound (no such file), kPermissionDenied, kInvalidArgument (not a regular
  // file), kTooLarge (over max_bytes), kResourceExhausted (no memory), kInternal (I/O error). An empty file maps to
  // empty bytes.
  static Result<MappedFile> open(const std::string& path, MapMode mode = MapMode::kMap,
                                 uint64_t max_bytes = UINT64_MAX);

  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_bytes_}; }
  std::size_t size_bytes() const { return size_bytes_; }
  const std::string& path() const { return path_; }
  MapMode mode() const { return mode_; }
  FileStamp stamp() const { return {inode_, size_bytes_, modified_ns_, changed_ns_, settled_}; }

  // Brings every page into memory, first to last, calling `progress` every few MiB (it may be empty).
  // kConflict when the file shrank meanwhile. A no-op after kCopy, apart from the calls of `progress`.
  Status prefault(const ProgressFn& progress = {}) const { return prefault(0, size_bytes_, progress); }
  // The same for the pages that hold [begin, begin + size), which `progress` counts.
  Status prefault(std::size_t begin, std::size_t size, const ProgressFn& progress = {}) const;

  // Copies [begin, begin + to.size()) to `to` with system calls, so that what is not there is an error and never a
  // signal: kConflict when the file shrank meanwhile.
  Status read(std::size_t begin, std::span<std::byte> to) const;

  // Gives the memory behind whole pages of [begin, begin + size) back to the system; the bytes are still there, read
  // again from the file when they are next looked at. A no-op after kCopy, whose bytes have no other home.
  void release(std::size_t begin, std::size_t size) const;

  // kConflict when size, inode or modification time are no longer those seen by open(): someone rewrites the file.
  Status verify_unchanged() const;

 private:
  Status map();
  Status copy();
  void close();

  std::string path_;
  const std::byte* data_ = nullptr;
  std::size_t size_bytes_ = 0;
  MapMode mode_ = MapMode::kMap;
  int fd_ = -1;
  uint64_t device_ = 0;
  uint64_t inode_ = 0;
  int64_t modified_ns_ = 0;
  int64_t changed_ns_ = 0;
  bool settled_ = false;
};

// The whole of a small text file (config.json and its like). kTooLarge when it has more than max_bytes.
Result<std::string> read_small_file(const std::string& path, uint64_t max_bytes);
// False: nothing has that name. Errors: the path cannot be looked at (no permission, a loop of links, too long a name).
Result<bool> file_exists(const std::string& path);

}  // namespace millrace
