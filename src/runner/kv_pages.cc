#include "runner/kv_pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>

namespace millrace {
namespace {

constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

struct KvDTypeName {
  std::string_view name;
  DType dtype;
};
constexpr std::array<KvDTypeName, 4> kKvDTypeNames = {
    {{"f32", DType::kF32}, {"f16", DType::kF16}, {"bf16", DType::kBF16}, {"int8", DType::kI8}}};

// A layer of one page, without its bytes: the layout is its own business.
kernels::KvLayer layer_shape(const ModelConfig& config, int32_t page_size, DType dtype) {
  kernels::KvLayer layer;
  layer.dtype = dtype;
  layer.page_size = page_size;
  layer.kv_heads = config.kv_heads;
  layer.head_dim = config.head_dim;
  layer.page_stride_bytes = layer.page_bytes();
  return layer;
}

Status check_options(const KvPagesOptions& options) {
  if (options.page_size < 1 || options.page_size > kMaxPageSize) {
    return invalid_argument("the page size is {}; wanted 1 to {} tokens", options.page_size, kMaxPageSize);
  }
  if (options.page_count < 1 || options.page_count > kMaxPageCount) {
    return invalid_argument("the number of KV pages is {}; wanted 1 to {}", options.page_count, kMaxPageCount);
  }
  if (options.host_page_count < 0 || options.host_page_count > kMaxPageCount) {
    return invalid_argument("the number of KV pages in the host tier is {}; wanted 0 to {}", options.host_page_count,
                            kMaxPageCount);
  }
  if (!kernels::is_kv_dtype(options.dtype)) {
    return invalid_argument("the KV dtype is {}; wanted F32, F16, BF16 or I8", dtype_name(options.dtype));
  }
  return ok_status();
}

}  // namespace

void KvPages::Free::operator()(void* p) const { std::free(p); }

Result<DType> kv_dtype_from_name(std::string_view name) {
  for (const KvDTypeName& known : kKvDTypeNames) {
    if (known.name == name) return known.dtype;
  }
  return invalid_argument("the KV dtype is '{}'; wanted f32, f16, bf16 or int8", name);
}

int64_t kv_page_bytes(const ModelConfig& config, LayerRange layers, int32_t page_size, DType dtype) {
  return 2 * layers.count() * layer_shape(config, page_size, dtype).page_bytes();
}

int32_t page_count_for(const ModelConfig& config, LayerRange layers, int32_t page_size, uint64_t bytes, DType dtype) {
  const uint64_t pages = bytes / static_cast<uint64_t>(kv_page_bytes(config, layers, page_size, dtype));
  return static_cast<int32_t>(std::min<uint64_t>(pages, kMaxPageCount));
}

Result<std::vector<KvPages::Bytes>> KvPages::allocate(int64_t page_bytes, int32_t page_count, std::size_t buffers,
                                                      bool poison) {
  const auto wanted = static_cast<std::size_t>(page_bytes * page_count);
  const std::size_t alignment = wanted >= kHugePageBytes ? kHugePageBytes : kBufferAlignment;
  const std::size_t rounded = (wanted + alignment - 1) / alignment * alignment;
  std::vector<Bytes> made;
  for (std::size_t i = 0; i < buffers; ++i) {
    made.emplace_back(static_cast<char*>(std::aligned_alloc(alignment, rounded)));
    if (made.back() == nullptr) {
      return error(StatusCode::kResourceExhausted, "no memory for {} KV pages of {} bytes; wanted a smaller --kv-gib",
                   page_count, page_bytes * static_cast<int64_t>(buffers));
    }
    // Attention walks pages in any order: huge ones save it the misses of the address cache. A system without them says
    // no, and nothing is lost.
    if (alignment == kHugePageBytes) (void)::madvise(made.back().get(), rounded, MADV_HUGEPAGE);
    // NaN in every float type, and as an int8 row's scale.
    if (poison) std::memset(made.back().get(), 0xff, rounded);
  }
  return made;
}

Result<KvPages> KvPages::make(const ModelConfig& config, LayerRange layers, const KvPagesOptions& options) {
  RETURN_IF_ERROR(check_options(options));
  kernels::KvLayer layer = layer_shape(config, options.page_size, options.dtype);
  layer.page_count = options.page_count;
  KvPages pages;
  pages.page_count_ = options.page_count;
  pages.host_page_count_ = options.host_page_count;
  pages.page_bytes_ = layer.page_bytes();
  const std::size_t buffers = 2 * static_cast<std::size_t>(layers.count());
  ASSIGN_OR_RETURN(pages.bytes_, allocate(pages.page_bytes_, options.page_count, buffers, options.poison));
  if (options.host_page_count > 0) {
    ASSIGN_OR_RETURN(pages.host_, allocate(pages.page_bytes_, options.host_page_count, buffers, options.poison));
  }
  for (std::size_t i = 0; i < buffers; i += 2) {
    layer.k = pages.bytes_[i].get();
    layer.v = pages.bytes_[i + 1].get();
    pages.layers_.push_back(layer);
  }
  return pages;
}

Status KvPages::check(const PageCopy& copy) const {
  if (copy.page.value < 0 || copy.page.value >= page_count_) {
    return invalid_argument("a copy of the page {}; wanted [0, {})", copy.page.value, page_count_);
  }
  if (copy.host_page.value < 0 || copy.host_page.value >= host_page_count_) {
    return invalid_argument("a copy of the host page {}; wanted [0, {})", copy.host_page.value, host_page_count_);
  }
  return ok_status();
}

Status KvPages::copy(std::span<const PageCopy> copies, ThreadPool& pool) {
  for (const PageCopy& copy : copies) RETURN_IF_ERROR(check(copy));
  // A part is one buffer with all its copies, which keeps their order.
  const auto buffers = static_cast<int64_t>(copies.empty() ? 0 : bytes_.size());
  pool.parallel_for(buffers, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const auto buffer = static_cast<std::size_t>(i);
      for (const PageCopy& copy : copies) {
        char* page = bytes_[buffer].get() + copy.page.value * page_bytes_;
        char* host_page = host_[buffer].get() + copy.host_page.value * page_bytes_;
        const bool to_host = copy.direction == CopyDirection::kToHost;
        std::memcpy(to_host ? host_page : page, to_host ? page : host_page, static_cast<std::size_t>(page_bytes_));
      }
    }
  });
  return ok_status();
}

Status KvPages::check_pages(std::span<const PageId> pages, const char* what) const {
  for (const PageId page : pages) {
    if (page.value >= 0 && page.value < page_count_) continue;
    return invalid_argument("a {} of the page {}; wanted [0, {})", what, page.value, page_count_);
  }
  return ok_status();
}

Result<std::span<const KvPages::Bytes>> KvPages::buffers_of(LayerSpan layers) const {
  const auto all = static_cast<int32_t>(bytes_.size() / 2);
  if (layers == LayerSpan{}) layers.end = all;
  if (layers.begin < 0 || layers.begin >= layers.end || layers.end > all) {
    return invalid_argument("layers [{}, {}) of pages; wanted some of [0, {})", layers.begin, layers.end, all);
  }
  return std::span(bytes_).subspan(2 * static_cast<std::size_t>(layers.begin),
                                   2 * static_cast<std::size_t>(layers.count()));
}

Status KvPages::write(const PageWrite& write, ThreadPool& pool) {
  RETURN_IF_ERROR(check_pages(write.pages, "write"));
  ASSIGN_OR_RETURN(const std::span<const Bytes> buffers, buffers_of(write.layers));
  const auto of_page = buffers.size() * static_cast<std::size_t>(page_bytes_);
  std::vector<const std::byte*> from;  // of each page
  std::size_t given = 0;
  for (const SharedBytes& part : write.bytes) {
    given += part.size_bytes();
    if (part.size_bytes() % of_page != 0) {
      return invalid_argument("{} bytes in one part; wanted whole pages of {}", part.size_bytes(), of_page);
    }
    for (std::size_t at = 0; at < part.size_bytes(); at += of_page) from.push_back(part.data() + at);
  }
  if (from.size() != write.pages.size()) {
    return invalid_argument("{} bytes for {} pages; wanted {}", given, write.pages.size(),
                            write.pages.size() * of_page);
  }
  const auto size = static_cast<std::size_t>(page_bytes_);
  pool.parallel_for(static_cast<int64_t>(write.pages.size()), 1, [&](int64_t begin, int64_t end, int) {
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
      const std::byte* next = from[i];
      const int64_t offset = write.pages[i].value * page_bytes_;
      for (const Bytes& buffer : buffers) {
        std::memcpy(buffer.get() + offset, next, size);
        next += size;
      }
    }
  });
  return ok_status();
}

Status KvPages::read(std::span<const PageId> pages, std::span<std::byte> to, LayerSpan layers) const {
  RETURN_IF_ERROR(check_pages(pages, "read"));
  ASSIGN_OR_RETURN(const std::span<const Bytes> buffers, buffers_of(layers));
  const std::size_t wanted = pages.size() * buffers.size() * static_cast<std::size_t>(page_bytes_);
  if (to.size() != wanted) return invalid_argument("{} bytes for {} pages; wanted {}", to.size(), pages.size(), wanted);
  const auto size = static_cast<std::size_t>(page_bytes_);
  std::byte* next = to.data();
  for (const PageId page : pages) {
    for (const Bytes& buffer : buffers) {
      std::memcpy(next, buffer.get() + page.value * page_bytes_, size);
      next += size;
    }
  }
  return ok_status();
}

}  // namespace millrace
