#include "runner/kv_pages.h"

#include <algorithm>
#include <cstdlib>
#include <limits>

namespace millrace {
namespace {

int64_t page_elements(const ModelConfig& config, int32_t page_size) { return int64_t{page_size} * config.kv_size(); }

}  // namespace

void KvPages::Free::operator()(void* p) const { std::free(p); }

int64_t kv_page_bytes(const ModelConfig& config, LayerRange layers, int32_t page_size) {
  return 2 * layers.count() * page_elements(config, page_size) * static_cast<int64_t>(dtype_size(DType::kF32));
}

int32_t page_count_for(const ModelConfig& config, LayerRange layers, int32_t page_size, uint64_t bytes) {
  const uint64_t pages = bytes / static_cast<uint64_t>(kv_page_bytes(config, layers, page_size));
  return static_cast<int32_t>(std::min<uint64_t>(pages, kMaxPageCount));
}

Result<KvPages> KvPages::make(const ModelConfig& config, LayerRange layers, int32_t page_size, int32_t page_count,
                              bool poison) {
  if (page_size < 1 || page_size > kMaxPageSize) {
    return invalid_argument("the page size is {}; wanted 1 to {} tokens", page_size, kMaxPageSize);
  }
  if (page_count < 1 || page_count > kMaxPageCount) {
    return invalid_argument("the number of KV pages is {}; wanted 1 to {}", page_count, kMaxPageCount);
  }
  const int64_t elements = page_elements(config, page_size) * page_count;
  const std::size_t size_bytes =
      (static_cast<std::size_t>(elements) * sizeof(float) + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
  KvPages pages;
  for (int i = 0; i < 2 * layers.count(); ++i) {
    pages.bytes_.emplace_back(std::aligned_alloc(kBufferAlignment, size_bytes));
    auto* data = static_cast<float*>(pages.bytes_.back().get());
    if (data == nullptr) {
      return error(StatusCode::kResourceExhausted, "no memory for {} KV pages of {} bytes; ask for fewer", page_count,
                   kv_page_bytes(config, layers, page_size));
    }
    if (poison) std::fill_n(data, elements, std::numeric_limits<float>::quiet_NaN());
  }
  for (int i = 0; i < layers.count(); ++i) {
    kernels::KvLayer layer;
    layer.k = pages.bytes_[static_cast<std::size_t>(2 * i)].get();
    layer.v = pages.bytes_[static_cast<std::size_t>(2 * i + 1)].get();
    layer.page_count = page_count;
    layer.page_size = page_size;
    layer.kv_heads = config.kv_heads;
    layer.head_dim = config.head_dim;
    layer.page_stride = page_elements(config, page_size);
    pages.layers_.push_back(layer);
  }
  return pages;
}

}  // namespace millrace
