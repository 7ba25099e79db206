// The bytes behind the KV pages of a range of layers, in the pool and in the host tier; which request owns a page is
// the books' business (kv/). K and V of a layer are one allocation each in either place, pages dense, so that the
// export of a page is one copy for each layer, K and V. A page's bytes say all that it holds (int8: its scales too).
//
// Fresh pages hold anything: attention never reads a slot that was not written. Poisoned pools hold NaN there, so that
// a test sees a read that should not be. Owner: the model runner. Thread safety: the compute thread's, but for read().
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/thread_pool.h"
#include "formats/model_config.h"
#include "kernels/ops.h"
#include "kv/page_copy.h"
#include "models/model.h"

namespace millrace {

inline constexpr int32_t kMaxPageSize = 1024;
inline constexpr int32_t kMaxPageCount = 1 << 28;

// "f32", "f16", "bf16" or "int8"; kInvalidArgument for another word.
Result<DType> kv_dtype_from_name(std::string_view name);

// Bytes of one page of `page_size` tokens in all layers of the range, keys and values, int8 scales included.
int64_t kv_page_bytes(const ModelConfig& config, LayerRange layers, int32_t page_size, DType dtype = DType::kF32);

// How many pages fit in `bytes`: 0 when not one does, at most kMaxPageCount.
int32_t page_count_for(const ModelConfig& config, LayerRange layers, int32_t page_size, uint64_t bytes,
                       DType dtype = DType::kF32);

struct KvPagesOptions {
  int32_t page_size = 16;       // tokens: 1 to kMaxPageSize
  int32_t page_count = 0;       // 1 to kMaxPageCount
  int32_t host_page_count = 0;  // 0 (no host tier) to kMaxPageCount
  DType dtype = DType::kF32;    // kernels::is_kv_dtype
  bool poison = false;          // fresh pages hold NaN, those of the host tier too
};

class KvPages {
 public:
  // kInvalidArgument for a size, a count or a dtype out of range; kResourceExhausted where the memory cannot be had.
  static Result<KvPages> make(const ModelConfig& config, LayerRange layers, const KvPagesOptions& options);

  // One for each layer of the range.
  std::span<const kernels::KvLayer> layers() const { return layers_; }

  // kInvalidArgument where a page lies outside the pool or the host tier.
  Status check(const PageCopy& copy) const;

  // Moves whole pages, all layers, K and V, one copy after the other: a page that an earlier copy wrote is read with
  // what it wrote. The bits arrive as they were. All copies are checked before the first one is done.
  Status copy(std::span<const PageCopy> copies, ThreadPool& pool);

  // Bytes of one page in read() and write(): K, then V of each layer, the first layer first, as attention has them.
  int64_t bytes_of_page() const { return page_bytes_ * static_cast<int64_t>(bytes_.size()); }
  // kInvalidArgument where a page or a layer lies outside the pool, or the bytes are not those of these layers for each
  // page: nothing is written then.
  Status write(const PageWrite& write, ThreadPool& pool);
  // Any thread, while others are written: these pages are not, in these layers, and what wrote them is known to be
  // done.
  Status read(std::span<const PageId> pages, std::span<std::byte> to, LayerSpan layers = {}) const;

 private:
  Status check_pages(std::span<const PageId> pages, const char* what) const;
  struct Free {
    void operator()(void* p) const;
  };
  using Bytes = std::unique_ptr<char, Free>;
  // K and V of each of these layers. kInvalidArgument: there are not so many.
  Result<std::span<const Bytes>> buffers_of(LayerSpan layers) const;
  static Result<std::vector<Bytes>> allocate(int64_t page_bytes, int32_t page_count, std::size_t buffers, bool poison);

  int32_t page_count_ = 0;
  int32_t host_page_count_ = 0;
  int64_t page_bytes_ = 0;           // of one buffer: one layer's K or V
  std::vector<Bytes> bytes_, host_;  // K and V of layer 0, of layer 1, ...; host_ is empty without a host tier
  std::vector<kernels::KvLayer> layers_;
};

}  // namespace millrace
