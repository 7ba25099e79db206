// How plain weights lie in memory for the CPU implementations: WeightLayout::kTiles.
//
// W[N, K] is cut into panels of 32 rows of W (32 columns of the result); the last one may be 16 wide. A panel is one
// run of bytes that a kernel reads from its first to its last, so decoding is one sequential stream:
//   f32, f16   for each k the elements of its 16 or 32 rows side by side
//   bf16       for each pair of k (2i, 2i+1) and each row the two elements side by side: a 32-bit word whose halves
//              widen with one shift or one mask, and the operand of the tile instructions as they want it
// K is rounded up to a multiple of 32 and N to one of 16; what is added is zero. A panel begins at a multiple of 64
// bytes. The elements are those of the file, bit for bit.
//
// Thread safety: free functions; different panels may be packed at the same time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "base/thread_pool.h"
#include "kernels/weight.h"

namespace millrace::kernels {

inline constexpr int64_t kPanelColumns = 32;
inline constexpr int64_t kPanelStep = 16;  // a panel's width is a multiple
inline constexpr int64_t kTileDepth = 32;  // K is rounded up to a multiple

constexpr int64_t tiles_depth(int64_t k) { return (k + kTileDepth - 1) / kTileDepth * kTileDepth; }
constexpr int64_t panel_count(int64_t n) { return (n + kPanelColumns - 1) / kPanelColumns; }
// Columns that panel `panel` of N has: 16 or 32.
constexpr int64_t panel_width(int64_t n, int64_t panel) {
  const int64_t left = (n - panel * kPanelColumns + kPanelStep - 1) / kPanelStep * kPanelStep;
  return left < kPanelColumns ? left : kPanelColumns;
}
constexpr int64_t panel_offset_bytes(int64_t k, int64_t element_bytes, int64_t panel) {
  return panel * kPanelColumns * tiles_depth(k) * element_bytes;
}
constexpr int64_t tiles_bytes(int64_t n, int64_t k, int64_t element_bytes) {
  return (n + kPanelStep - 1) / kPanelStep * kPanelStep * tiles_depth(k) * element_bytes;
}

// One panel of the row-major `source` (f32, f16 or bf16), written to `to`.
void pack_tile_panel(const TensorView& source, int64_t panel, char* to);

// A weight in tiles whose bytes are not written yet: they go to `to`. They are the Weight's own.
Weight empty_tiles(DType dtype, const Shape& shape, std::span<std::byte>& to);

// All panels.
Weight pack_tiles(const TensorView& source, ThreadPool& pool, const RowsDone& rows_done = {});

// Panel 0 of a weight in tiles. Its pages are huge where the matrix is big enough and the system has them: reading
// through 4 KiB pages costs a fifth of the bandwidth.
const char* tiles_data(const Weight& weight);
std::span<const std::byte> tiles_span(const Weight& weight);

// Row `row` of packed W as f32: `columns` elements. For the embedding.
void read_tiles_row(const Weight& weight, int64_t row, float* to);

}  // namespace millrace::kernels
