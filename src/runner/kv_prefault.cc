#include "runner/kv_prefault.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/log.h"

// Linux 5.14; headers of older C libraries lack the name.
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace millrace {

int populate_pages(char* begin, int64_t bytes) {
  static const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<uintptr_t>(begin);
  const uintptr_t first = address / page * page;
  const uintptr_t end = (address + static_cast<uintptr_t>(bytes) + page - 1) / page * page;
  return ::madvise(reinterpret_cast<void*>(first), end - first, MADV_POPULATE_WRITE) == 0 ? 0 : errno;
}

KvPrefault::KvPrefault(std::span<const kernels::KvLayer> layers, PopulatePages populate) : populate_(populate) {
  for (const kernels::KvLayer& layer : layers) {
    for (void* buffer : {layer.k, layer.v}) buffers_.push_back(static_cast<char*>(buffer));
    page_size_ = layer.page_size;
    page_bytes_ = layer.page_stride_bytes;
    size_ = layer.page_stride_bytes * layer.page_count;
  }
}

// The step itself reaches the rows of the pages that it uses.
void KvPrefault::add_used(std::span<const int32_t> pages) {
  if (pages.empty()) return;
  used_bytes_ = std::max(used_bytes_, (int64_t{std::ranges::max(pages)} + 1) * page_bytes_);
  used_ = (used_bytes_ + kKvPrefaultBytes - 1) / kKvPrefaultBytes;
  if (used_ <= backed_) return;
  backed_ = used_;
  buffer_ = 0;
}

int64_t KvPrefault::rows_ahead() const {
  if (buffers_.empty()) return 1;
  const int64_t most = kKvBytesAhead / static_cast<int64_t>(buffers_.size());
  return std::max<int64_t>(1, std::min(kKvTokensAhead * page_bytes_ / page_size_, most) / kKvPrefaultBytes);
}

bool KvPrefault::prefault_in_step() {
  if (used_ == 0 || backed_ > used_) return false;
  const int64_t in_row = used_bytes_ - (used_ - 1) * kKvPrefaultBytes;
  const int64_t wanted = in_row * static_cast<int64_t>(buffers_.size()) / kKvPrefaultBytes;
  return static_cast<int64_t>(buffer_) < wanted && prefault(1);
}

bool KvPrefault::prefault(int64_t rows) {
  const int64_t begin = backed_ * kKvPrefaultBytes;
  if (!available_ || backed_ >= used_ + rows || begin >= size_) return false;
  // Any other errno (no memory now, a broken page) is for the step that writes there: it may never come.
  if (populate_(buffers_[buffer_] + begin, std::min(kKvPrefaultBytes, size_ - begin)) == EINVAL) {
    LOG_WARNING("KV pages are not prefaulted: the kernel lacks MADV_POPULATE_WRITE; wanted Linux 5.14 or later");
    available_ = false;
    return false;
  }
  if (++buffer_ < buffers_.size()) return true;
  buffer_ = 0;
  ++backed_;
  return true;
}

}  // namespace millrace
