#include "kernels/cpu/cpu_linear.h"

#include <algorithm>

#include "kernels/cpu/prefetch_distance.h"
#include "kernels/cpu/tiles.h"

namespace millrace::kernels {
namespace {

// Below this amount of work everything runs on the calling thread: waking a sleeping one costs some microseconds.
constexpr int64_t kInlineProducts = 64 * 1024;
constexpr int64_t kInlineElements = 16 * 1024;  // of x to pack
// A part of a pass over the weights: long enough for the memory to stream, short enough to balance.
constexpr int64_t kPartBytes = 256 * 1024;
constexpr int64_t kPartsPerThread = 4;
constexpr int64_t kWideParts = 2;              // per thread, where a part holds many rows
constexpr int64_t kRowBlockBytes = 768 << 10;  // of packed x that should stay in a level-2 cache
constexpr int64_t kLeastBlockRows = 64;        // below, widening weights again for each block would show

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t round_up(int64_t a, int64_t b) { return divide_up(a, b) * b; }

// The first row of a tile, or all rows where there is no such tile.
int64_t first_row(const LinearKernel& kernel, int64_t rows, int64_t tile) {
  const int64_t tiles = divide_up(rows, kernel.row_tile);
  return kernel.even_tiles ? rows * tile / tiles : std::min(rows, tile * kernel.row_tile);
}

char* grown(Buffer& buffer, int64_t bytes) {
  const auto size = static_cast<std::size_t>(bytes);
  if (buffer.size_bytes() < size) buffer = Buffer(size);
  return reinterpret_cast<char*>(buffer.data());
}

}  // namespace

WeightKind weight_kind(DType type) {
  if (type == DType::kF16) return WeightKind::kF16;
  if (type == DType::kBF16) return WeightKind::kBF16;
  CHECK(type == DType::kF32);
  return WeightKind::kF32;
}

CpuLinear::CpuLinear(const LinearKernel* const (&kernels)[3], ThreadPool& pool)
    : kernels_{kernels[0], kernels[1], kernels[2]}, pool_(pool) {
  int64_t floats = 0;
  for (const LinearKernel* kernel : kernels_) floats = std::max(floats, kernel->scratch_floats);
  for (int i = 0; i < pool.size(); ++i) scratch_.emplace_back(static_cast<std::size_t>(floats) * sizeof(float));
  panels_.resize(static_cast<std::size_t>(pool.size()));
}

// Of all products together: parts of `width` panels of one product and a block of rows.
struct CpuLinear::Cut {
  int64_t row_blocks = 1;
  int64_t width = 1;                     // panels of a part
  bool small = false;                    // the calling thread alone does it
  int64_t columns = 0;                   // parts of one block of rows, all products
  int64_t first[kMaxProducts + 1] = {};  // each product's first column, and the end
};

void CpuLinear::run(const CpuInput& input, std::span<const CpuProduct> products) {
  CHECK(!products.empty() && products.size() <= kMaxProducts);
  const Weight& weight = *products.front().weight;
  CHECK(weight.layout == WeightLayout::kPlain || weight.layout == WeightLayout::kTiles);
  const LinearKernel& kernel = *kernels_[static_cast<int>(weight_kind(weight.dtype()))];
  const bool many = input.count() > kernel.few_rows;
  const ConstRows x = prepare(kernel, input, many);
  const Cut cut = this->cut(kernel, products);
  const int64_t tiles = divide_up(x.count, kernel.row_tile);
  const int64_t parts = cut.row_blocks * cut.columns;
  // Neighbouring parts share their rows of x, which stay in the level-2 cache while the weights pass by.
  pool_.parallel_for(parts, cut.small ? parts : 1, [&](int64_t begin, int64_t end, int worker) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t block = i / cut.columns, column = i % cut.columns;
      std::size_t which = 0;
      while (column >= cut.first[which + 1]) ++which;
      LinearPart part{};
      part.prefetch_bytes = prefetch_distance().plain_bytes;
      part.packed_x = many ? packed_.data() : nullptr;
      part.tile_begin = tiles * block / cut.row_blocks;
      part.tile_end = tiles * (block + 1) / cut.row_blocks;
      part.panel_begin = (column - cut.first[which]) * cut.width;
      part.panel_end = std::min(panel_count(products[which].y.width), part.panel_begin + cut.width);
      run_part(kernel, x, products[which], part, worker);
    }
  });
}

// The rows, made where they are not there as they are and packed where there are many, a tile at a time.
ConstRows CpuLinear::prepare(const LinearKernel& kernel, const CpuInput& input, bool pack) {
  ConstRows x = input.x();
  if (input.as_it_is() && !pack) return x;
  float* made = nullptr;
  if (!input.as_it_is()) {
    made = reinterpret_cast<float*>(grown(made_, x.count * x.width * static_cast<int64_t>(sizeof(float))));
    x = ConstRows(made, x.count, x.width);
  }
  // A byte at least: its presence selects the kernel.
  if (pack) grown(packed_, std::max<int64_t>(1, x.count * round_up(x.width, kernel.depth) * kernel.element_bytes));
  const int64_t tiles = divide_up(x.count, kernel.row_tile);
  const int64_t grain = std::max<int64_t>(1, kInlineElements / (kernel.row_tile * std::max<int64_t>(x.width, 1)));
  pool_.parallel_for(tiles, grain, [&](int64_t begin, int64_t end, int) {
    for (int64_t tile = begin; tile < end; ++tile) {
      const int64_t rows_end = made != nullptr ? first_row(kernel, x.count, tile + 1) : 0;
      for (int64_t r = first_row(kernel, x.count, tile); r < rows_end; ++r) (void)input.row(r, made + r * x.width);
      if (pack) kernel.pack(x.data, x.stride, x.count, x.width, tile, tile + 1, packed_.data());
    }
  });
  return x;
}

CpuLinear::Cut CpuLinear::cut(const LinearKernel& kernel, std::span<const CpuProduct> products) const {
  const Weight& weight = *products.front().weight;
  const int64_t k = weight.columns(), rows = products.front().y.count;
  const int64_t panel_bytes = panel_offset_bytes(k, static_cast<int64_t>(dtype_size(weight.dtype())), 1);
  int64_t panels = 0, n = 0;
  for (const CpuProduct& product : products) {
    panels += panel_count(product.y.width);
    n += product.y.width;
  }
  Cut cut;
  if (rows > kernel.few_rows) {
    int64_t block_rows = kernel.block_rows;
    if (kernel.even_tiles) {
      const int64_t fitting = kRowBlockBytes / (std::max<int64_t>(k, 1) * kernel.element_bytes);
      block_rows = std::clamp(fitting, kLeastBlockRows, block_rows);
    }
    cut.row_blocks = divide_up(rows, block_rows);
  }
  // A block of rows that fills its caches takes its time over each panel; else the parts are cut by bytes.
  const bool wide = rows >= kLeastBlockRows;
  const int64_t share = divide_up(panels, pool_.size() * (wide ? kWideParts : kPartsPerThread));
  const int64_t width = wide ? kernel.block_panels : divide_up(kPartBytes, std::max<int64_t>(panel_bytes, 1));
  const int64_t most = std::max<int64_t>(1, wide ? kernel.block_panels : panels);
  cut.width = std::clamp<int64_t>(std::min(width, share), 1, most);
  cut.small = rows * n * k < kInlineProducts;
  if (cut.small && !wide) cut.width = kernel.block_panels;
  for (std::size_t i = 0; i < products.size(); ++i) {
    cut.first[i + 1] = cut.first[i] + divide_up(panel_count(products[i].y.width), cut.width);
  }
  cut.columns = cut.first[products.size()];
  return cut;
}

// `part` has the range of the product's rows and panels; the rest is filled in here.
void CpuLinear::run_part(const LinearKernel& kernel, const ConstRows& x, const CpuProduct& product, LinearPart part,
                         int worker) {
  const Weight& weight = *product.weight;
  part.x = x.data;
  part.x_stride = x.stride;
  part.n = product.y.width;
  part.k = x.width;
  part.rows = x.count;
  part.bias = product.bias;
  part.y = product.y.data;
  part.y_stride = product.y.stride;
  part.accumulate = product.accumulate;
  part.scratch = scratch_[static_cast<std::size_t>(worker)].as<float>().data();
  const auto run = part.packed_x != nullptr ? kernel.many : kernel.few;
  if (weight.layout == WeightLayout::kTiles) {
    part.weight = tiles_data(weight);
    return run(part);
  }
  const auto size = static_cast<int64_t>(dtype_size(weight.dtype()));
  char* panel = grown(panels_[static_cast<std::size_t>(worker)], panel_offset_bytes(part.k, size, 1));
  for (int64_t p = part.panel_begin; p < part.panel_end; ++p) {
    pack_tile_panel(weight.view, p, panel);
    LinearPart one = part;
    one.weight = panel;
    one.n = part.n - p * kPanelColumns;
    if (one.bias != nullptr) one.bias += p * kPanelColumns;
    one.y += p * kPanelColumns;
    one.panel_begin = 0;
    one.panel_end = 1;
    run(one);
  }
}

}  // namespace millrace::kernels
