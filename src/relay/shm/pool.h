// Pool: the memory of one writer's puts: a sparse memfd of which extents are lent out.
//
// The address space is kSpaceFactor times what may be held, and pages come with use, so that a contiguous extent is
// found although extents of all sizes come and go; it costs page tables only where it is used. An extent is the first
// one that fits (lowest offset): what was used before, and is warm, is used again. Pages stay when an extent comes
// back, up to pool_bytes and a little; beyond it the free pages at the highest offsets go first.
//
// Thread safety: all functions from any thread. Owner: the Writer; the mapping stands as long as the pool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/status.h"
#include "relay/shm/shared_memory.h"

namespace millrace::shm {

inline constexpr std::size_t kSpaceFactor = 4;
inline constexpr std::size_t kMaxPoolBytes = std::size_t{1} << 42;
inline constexpr std::size_t kSparePoolBytes = std::size_t{2} << 20;  // for rounding, beyond pool_bytes

struct Extent {
  std::size_t offset = 0;
  std::size_t bytes = 0;  // a multiple of kPageBytes
};

// The books of which parts of [0, bytes) are taken. Not thread safe.
class Extents {
 public:
  explicit Extents(std::size_t bytes);
  std::optional<Extent> take(std::size_t bytes);  // rounded up to whole pages; at least one
  void release(Extent extent);
  const std::map<std::size_t, std::size_t>& free() const { return free_; }  // offset -> bytes, neighbours joined

 private:
  std::map<std::size_t, std::size_t> free_;
};

class Pool {
 public:
  static Result<std::unique_ptr<Pool>> make(std::size_t pool_bytes);

  // With all its pages there. kResourceExhausted: no contiguous extent, or no memory.
  Result<Extent> take(std::size_t bytes);
  void release(Extent extent);
  std::byte* at(const Extent& extent) const { return mapping_.data() + extent.offset; }

  std::size_t space_bytes() const { return mapping_.size_bytes(); }
  std::size_t memory_bytes() const;  // that have pages now
  const Fd& for_readers() const { return read_only_; }

 private:
  Pool(std::size_t pool_bytes, Fd memfd, Fd read_only, Mapping mapping);
  std::vector<Extent> mark(Extent extent);  // the runs of it that have no pages yet; now they count as having them
  void unmark(Extent run);
  void trim(std::size_t wanted_pages);  // so that so many more stay within the limit, where free pages allow it
  std::size_t run_end(std::size_t page, std::size_t end) const;  // of pages that are alike

  const std::size_t limit_pages_;
  const Fd memfd_;
  const Fd read_only_;
  const Mapping mapping_;
  mutable std::mutex mutex_;
  Extents extents_;
  std::vector<uint64_t> paged_;  // a bit for each page: it is there
  std::size_t pages_ = 0;        // bits that are set
};

}  // namespace millrace::shm
