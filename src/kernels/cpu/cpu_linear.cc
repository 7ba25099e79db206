#include "kernels/cpu/cpu_linear.h"

#include <algorithm>

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

void CpuLinear::run(const ConstRows& x, const Weight& weight, const Rows& y, const float* bias, bool accumulate) {
  CHECK(weight.layout == WeightLayout::kPlain || weight.layout == WeightLayout::kTiles);
  const LinearKernel& kernel = *kernels_[static_cast<int>(weight_kind(weight.dtype()))];
  LinearPart all{};
  all.x = x.data;
  all.x_stride = x.stride;
  if (weight.layout == WeightLayout::kTiles) all.weight = tiles_data(weight);
  all.n = y.width;
  all.k = x.width;
  all.rows = y.count;
  all.bias = bias;
  all.y = y.data;
  all.y_stride = y.stride;
  all.accumulate = accumulate;
  int64_t row_blocks = 1;
  if (y.count > kernel.few_rows) {
    pack_rows(kernel, x);
    all.packed_x = packed_.data();
    int64_t block_rows = kernel.block_rows;
    if (kernel.even_tiles) {
      const int64_t fitting = kRowBlockBytes / (std::max<int64_t>(all.k, 1) * kernel.element_bytes);
      block_rows = std::clamp(fitting, kLeastBlockRows, block_rows);
    }
    row_blocks = divide_up(y.count, block_rows);
  }
  run_parts(kernel, all, weight, row_blocks);
}

void CpuLinear::pack_rows(const LinearKernel& kernel, const ConstRows& x) {
  // A byte at least: that it is there says which kernel runs.
  grown(packed_, std::max<int64_t>(1, x.count * round_up(x.width, kernel.depth) * kernel.element_bytes));
  const int64_t tiles = divide_up(x.count, kernel.row_tile);
  const int64_t grain = std::max<int64_t>(1, kInlineElements / (kernel.row_tile * std::max<int64_t>(x.width, 1)));
  pool_.parallel_for(tiles, grain, [&](int64_t begin, int64_t end, int) {
    kernel.pack(x.data, x.stride, x.count, x.width, begin, end, packed_.data());
  });
}

void CpuLinear::run_parts(const LinearKernel& kernel, const LinearPart& all, const Weight& weight, int64_t row_blocks) {
  const int64_t panels = panel_count(all.n);
  const int64_t tiles = divide_up(all.rows, kernel.row_tile);
  const int64_t panel_bytes = panel_offset_bytes(all.k, static_cast<int64_t>(dtype_size(weight.dtype())), 1);
  // A block of rows that fills its caches takes its time over each panel; else the parts are cut by bytes.
  const bool wide = all.rows >= kLeastBlockRows;
  const int64_t share = divide_up(panels, pool_.size() * (wide ? kWideParts : kPartsPerThread));
  int64_t width = wide ? kernel.block_panels : divide_up(kPartBytes, std::max<int64_t>(panel_bytes, 1));
  width = std::clamp<int64_t>(std::min(width, share), 1, std::max<int64_t>(1, wide ? kernel.block_panels : panels));
  const bool small = all.rows * all.n * all.k < kInlineProducts;
  if (small && !wide) width = kernel.block_panels;
  const int64_t columns = divide_up(panels, width);
  const int64_t parts = row_blocks * columns;
  // Neighbouring parts share their rows of x, which stay in the level-2 cache while the weights pass by.
  pool_.parallel_for(parts, small ? parts : 1, [&](int64_t begin, int64_t end, int worker) {
    for (int64_t i = begin; i < end; ++i) {
      LinearPart part = all;
      part.tile_begin = tiles * (i / columns) / row_blocks;
      part.tile_end = tiles * (i / columns + 1) / row_blocks;
      part.panel_begin = i % columns * width;
      part.panel_end = std::min(panels, part.panel_begin + width);
      part.scratch = scratch_[static_cast<std::size_t>(worker)].as<float>().data();
      run_panels(kernel, part, weight, worker);
    }
  });
}

void CpuLinear::run_panels(const LinearKernel& kernel, const LinearPart& part, const Weight& weight, int worker) {
  const auto run = part.packed_x != nullptr ? kernel.many : kernel.few;
  if (part.weight != nullptr) return run(part);
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
