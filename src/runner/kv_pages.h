// The bytes behind the KV pages of a range of layers; who owns which page is the scheduler's book. K and V of a layer
// are one allocation each, pages dense, so that the export of a page is one copy for each layer, K and V.
//
// Fresh pages hold anything: attention never reads a slot that was not written. Poisoned pools hold NaN there, so that
// a test sees a read that should not be. Owner: the model runner. Thread safety: none; the compute thread's.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "formats/model_config.h"
#include "kernels/ops.h"
#include "models/model.h"

namespace millrace {

inline constexpr int32_t kMaxPageSize = 1024;
inline constexpr int32_t kMaxPageCount = 1 << 28;

// Bytes of one page of `page_size` tokens in all layers of the range.
int64_t kv_page_bytes(const ModelConfig& config, LayerRange layers, int32_t page_size);

// How many pages fit in `bytes`: 0 when not one does, at most kMaxPageCount.
int32_t page_count_for(const ModelConfig& config, LayerRange layers, int32_t page_size, uint64_t bytes);

class KvPages {
 public:
  // kInvalidArgument for a size or a count out of range; kResourceExhausted where the memory cannot be had.
  static Result<KvPages> make(const ModelConfig& config, LayerRange layers, int32_t page_size, int32_t page_count,
                              bool poison);

  // One for each layer of the range.
  std::span<const kernels::KvLayer> layers() const { return layers_; }

 private:
  struct Free {
    void operator()(void* p) const;
  };
  std::vector<std::unique_ptr<void, Free>> bytes_;
  std::vector<kernels::KvLayer> layers_;
};

}  // namespace millrace
