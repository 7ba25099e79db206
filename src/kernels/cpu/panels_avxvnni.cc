// Products with panels for AVX2 + FMA + F16C + AVX-VNNI: VPDPBUSD of 256 bits, which processors for desktops have that
// lack AVX-512. This file alone is compiled with those flags; see kernel_table.h for what it must not do. No include
// but the table and the intrinsics.
#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/cpu/panel_table.h"

namespace millrace::kernels {
namespace {

// Each text builds on those before it.
// clang-format off
#include "kernels/cpu/unroll.inl"
#include "kernels/cpu/panel_terms.inl"
#include "kernels/cpu/panel_vec_avx2.inl"

static inline Ints dot(Ints sum, Ints w, Ints x) { return _mm256_dpbusd_avx_epi32(sum, w, x); }

#include "kernels/cpu/panels_vnni256.inl"
// clang-format on

}  // namespace

extern const PanelTable kAvxVnniPanels = {
    .tile_rows = vector_tile_rows, .quantize = quantize, .multiply = multiply, .scratch_bytes_per_block = 0};

}  // namespace millrace::kernels

#endif
