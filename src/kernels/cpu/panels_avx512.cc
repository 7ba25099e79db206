// Products with panels for AVX-512 (F, BW, VL, DQ, VNNI). This file alone is compiled with those flags; see
// kernel_table.h for what it must not do. No include but the table and the intrinsics.
#if defined(__x86_64__)
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // g++ 12 warns of its own intrinsics
#endif
#include <immintrin.h>

#include "kernels/cpu/panel_table.h"

namespace millrace::kernels {
namespace {

constexpr int kMostRows = 12;  // 12 integer and 12 float sums, and what they meet
constexpr int kTallestTile = kMostRows;
constexpr int kMostRowsLarge = 8;  // up to three sums a row

// Each text builds on those before it.
// clang-format off
#include "kernels/cpu/unroll.inl"
#include "kernels/cpu/panel_terms.inl"
#include "kernels/cpu/panel_vec_avx512.inl"
#include "kernels/cpu/panel_weights.inl"
#include "kernels/cpu/panel_dot_vnni.inl"
#include "kernels/cpu/panel_tiles.inl"
// clang-format on

static void multiply(const PanelPart& part) { multiply_by_vectors(part, 0); }

}  // namespace

extern const PanelTable kAvx512Panels = {
    .tile_rows = vector_tile_rows, .quantize = quantize, .multiply = multiply, .scratch_bytes_per_block = 0};

}  // namespace millrace::kernels

#endif
