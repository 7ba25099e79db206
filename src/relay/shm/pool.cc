#include "relay/shm/pool.h"

#include <algorithm>
#include <bit>

#include "relay/shm/layout.h"

namespace millrace::shm {

Extents::Extents(std::size_t bytes) { free_.emplace(0, bytes / kPageBytes * kPageBytes); }

std::optional<Extent> Extents::take(std::size_t bytes) {
  bytes = round_up(std::max<std::size_t>(bytes, 1), kPageBytes);
  // There are no more free extents than slots and one: walking them costs less than keeping them in order of size.
  for (auto at = free_.begin(); at != free_.end(); ++at) {
    if (at->second < bytes) continue;
    const Extent extent{at->first, bytes};
    const std::size_t rest = at->second - bytes;
    const auto next = free_.erase(at);
    if (rest != 0) free_.emplace_hint(next, extent.offset + bytes, rest);
    return extent;
  }
  return std::nullopt;
}

// Joined with both neighbours at once, so that free_ never has two extents that touch: take() finds a large one only if
// it is one entry.
void Extents::release(Extent extent) {
  const auto [at, fresh] = free_.emplace(extent.offset, extent.bytes);
  // An extent that is free already would be lent out twice.
  CHECK(fresh);
  if (const auto next = std::next(at); next != free_.end()) {
    CHECK(at->first + at->second <= next->first);
    if (at->first + at->second == next->first) {
      at->second += next->second;
      free_.erase(next);
    }
  }
  if (at == free_.begin()) return;
  const auto before = std::prev(at);
  CHECK(before->first + before->second <= at->first);
  if (before->first + before->second == at->first) {
    before->second += at->second;
    free_.erase(at);
  }
}

Result<std::unique_ptr<Pool>> Pool::make(std::size_t pool_bytes) {
  if (pool_bytes > kMaxPoolBytes) {
    return invalid_argument("shm relay: pool_bytes is {}; wanted at most {}", pool_bytes, kMaxPoolBytes);
  }
  // No overflow: at most 4 times 4 TiB and a little. Without pages it costs address space alone.
  const std::size_t space = round_up((pool_bytes + kSparePoolBytes) * kSpaceFactor, kPageBytes);
  ASSIGN_OR_RETURN(Fd memfd, make_memfd("millrace-pool", space));
  ASSIGN_OR_RETURN(Fd opened, read_only(memfd));
  ASSIGN_OR_RETURN(Mapping mapping, Mapping::make(memfd, space, true));
  return std::unique_ptr<Pool>(new Pool(pool_bytes, std::move(memfd), std::move(opened), std::move(mapping)));
}

Pool::Pool(std::size_t pool_bytes, Fd memfd, Fd read_only, Mapping mapping)
    : limit_pages_((pool_bytes + kSparePoolBytes) / kPageBytes),
      memfd_(std::move(memfd)),
      read_only_(std::move(read_only)),
      mapping_(std::move(mapping)),
      extents_(mapping_.size_bytes()),
      paged_((mapping_.size_bytes() / kPageBytes + 63) / 64) {}

Result<Extent> Pool::take(std::size_t bytes) {
  Extent extent;
  std::vector<Extent> missing;
  {
    std::lock_guard lock(mutex_);
    const std::optional<Extent> found = extents_.take(bytes);
    if (!found) {
      return error(StatusCode::kResourceExhausted, "shm relay: no {} contiguous bytes are free in the pool", bytes);
    }
    extent = *found;
    missing = mark(extent);
  }
  // Without the lock: the extent is this put's alone, and no two extents share a page.
  for (const Extent& run : missing) {
    Status status = reserve_pages(memfd_, run.offset, run.bytes);
    if (status.ok()) continue;
    std::lock_guard lock(mutex_);
    // All of them, reserved or not: a hole in a hole changes nothing, and mark() has set the bits of all.
    for (const Extent& other : missing) {
      drop_pages(memfd_, other.offset, other.bytes);
      unmark(other);
    }
    extents_.release(extent);
    return status;
  }
  return extent;
}

// The pages stay, see the header: giving them back and taking them again costs the kernel more than the copy of a small
// put.
void Pool::release(Extent extent) {
  std::lock_guard lock(mutex_);
  extents_.release(extent);
}

std::size_t Pool::memory_bytes() const {
  std::lock_guard lock(mutex_);
  return pages_ * kPageBytes;
}

// 64 pages a step: the word is turned so that pages like the first one are zeros, and its lowest set bit is the first
// page that differs.
std::size_t Pool::run_end(std::size_t page, std::size_t end) const {
  const bool set = (paged_[page / 64] >> (page % 64) & 1) != 0;
  while (page < end) {
    const uint64_t word = (set ? ~paged_[page / 64] : paged_[page / 64]) >> (page % 64);
    const std::size_t left = 64 - page % 64;
    const std::size_t alike = word == 0 ? left : static_cast<std::size_t>(std::countr_zero(word));
    page += alike;
    if (alike < left) break;
  }
  return std::min(page, end);
}

// Under the lock. The bits are set before the pages are there: the extent is the caller's, so trim() does not look at
// it, and no other put reads them.
std::vector<Extent> Pool::mark(Extent extent) {
  std::vector<Extent> missing;
  const std::size_t end = (extent.offset + extent.bytes) / kPageBytes;
  std::size_t wanted = 0;
  for (std::size_t page = extent.offset / kPageBytes; page < end;) {
    const std::size_t next = run_end(page, end);
    if ((paged_[page / 64] >> (page % 64) & 1) == 0) {
      missing.push_back({page * kPageBytes, (next - page) * kPageBytes});
      wanted += next - page;
    }
    page = next;
  }
  if (wanted == 0) return missing;
  // Before the bits are set, as trim() counts what is wanted on top of what is there.
  trim(wanted);
  for (const Extent& run : missing) {
    for (std::size_t page = run.offset / kPageBytes; page < (run.offset + run.bytes) / kPageBytes; ++page) {
      paged_[page / 64] |= uint64_t{1} << (page % 64);
    }
  }
  pages_ += wanted;
  return missing;
}

void Pool::unmark(Extent run) {
  for (std::size_t page = run.offset / kPageBytes; page < (run.offset + run.bytes) / kPageBytes; ++page) {
    paged_[page / 64] &= ~(uint64_t{1} << (page % 64));
  }
  pages_ -= run.bytes / kPageBytes;
}

// From the highest offsets down, as take() begins at the lowest: what is dropped is what would be used last. Only free
// extents: the pages of a lent one may have a reader. Where they do not suffice the pool is over its limit by what
// rounding and alignment cost the open puts.
void Pool::trim(std::size_t wanted_pages) {
  const auto& free = extents_.free();
  for (auto at = free.rbegin(); at != free.rend() && pages_ + wanted_pages > limit_pages_; ++at) {
    const std::size_t end = (at->first + at->second) / kPageBytes;
    for (std::size_t page = at->first / kPageBytes; page < end;) {
      const std::size_t next = run_end(page, end);
      if ((paged_[page / 64] >> (page % 64) & 1) != 0) {
        const Extent run{page * kPageBytes, (next - page) * kPageBytes};
        drop_pages(memfd_, run.offset, run.bytes);
        unmark(run);
      }
      page = next;
    }
  }
}

}  // namespace millrace::shm
