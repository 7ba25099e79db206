// The border between cpu_linear.cc and the kernels of `linear` for plain weights in tiles (tiles.h): plain structs and
// function pointers, nothing inline. The rules of kernel_table.h for per-ISA files hold here.
//
// Thread safety: kernels write only what their arguments name; all may run concurrently.
#pragma once

#include <cstdint>

namespace millrace::kernels {

enum class WeightKind : int { kF32, kF16, kBF16 };

// Panels [panel_begin, panel_end) times some rows of x. Strides count elements.
struct LinearPart {
  const float* x;  // `few`: row-major, all rows are meant
  int64_t x_stride;
  const void* packed_x;          // `many`: what `pack` wrote, of all rows of the call
  int64_t tile_begin, tile_end;  // `many`: tiles of rows
  const char* weight;            // panel 0
  int64_t n, k, rows;            // of the call
  const float* bias;             // [n] or null
  float* y;
  int64_t y_stride;
  bool accumulate;
  int64_t panel_begin, panel_end;
  int64_t prefetch_bytes;  // how far `few` asks for weights: prefetch_distance.h
  float* scratch;          // scratch_floats, 64-byte aligned
};

// One way to multiply one kind of weights. The bits of a row are the same through `few` and `many`.
struct LinearKernel {
  int64_t few_rows;       // up to here `few`, without packing; 0: never
  int64_t row_tile;       // most rows of a tile
  bool even_tiles;        // rows are spread evenly over the tiles; else all but the last hold row_tile
  int64_t element_bytes;  // of packed x
  int64_t depth;          // k is rounded up to a multiple in packed x
  int64_t block_rows;     // most rows in one part: they stay in the level-2 cache (for the usual k)
  int64_t block_panels;   // most panels in one part
  int64_t scratch_floats;
  void (*few)(const LinearPart&);
  void (*many)(const LinearPart&);
  // Rows of tiles [tile_begin, tile_end) of all `rows`.
  void (*pack)(const float* x, int64_t x_stride, int64_t rows, int64_t k, int64_t tile_begin, int64_t tile_end,
               void* packed);
};

}  // namespace millrace::kernels
