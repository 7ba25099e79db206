// The kernels for AVX-512 (F, BW, VL, DQ). This file alone is compiled with those flags; see kernel_table.h for what it
// must not do. No include but the table and the intrinsics.
#if defined(__x86_64__)
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // gcc 12 warns of the intrinsics' own "undefined" vectors
#endif
#include <immintrin.h>

#include "kernels/cpu/kernel_table.h"

namespace millrace::kernels {
namespace {

// Each text builds on those before it.
// clang-format off
#include "kernels/cpu/unroll.inl"
#include "kernels/cpu/vec_avx2.inl"
#include "kernels/cpu/linear_vec_avx512.inl"
#include "kernels/cpu/linear_sums.inl"
#include "kernels/cpu/linear.inl"
#include "kernels/cpu/pair_widened.inl"
#include "kernels/cpu/linear_rounded.inl"

namespace wide {
#include "kernels/cpu/vec_avx512.inl"
#include "kernels/cpu/elementwise.inl"
#include "kernels/cpu/attention_block.inl"
#include "kernels/cpu/attention_tile.inl"
#include "kernels/cpu/attention_direct.inl"
#include "kernels/cpu/attention_lanes.inl"
#include "kernels/cpu/attention_values.inl"
#include "kernels/cpu/attention.inl"
}  // namespace wide
// clang-format on

}  // namespace

extern const KernelTable kAvx512Kernels = {
    .linear = {&kLinearF32, &kLinearF16, &kLinearBF16},
    .rounded = &kLinearRounded,
    .widen = widen,
    .rms_norm = wide::rms_norm,
    .layer_norm = wide::layer_norm,
    .gelu = wide::gelu,
    .add = wide::add_rows,
    .add_scaled = wide::add_scaled,
    .snake = wide::snake,
    .depthwise = wide::depthwise,
    .swiglu = wide::swiglu,
    .rope = wide::rope,
    .attention = wide::attention,
    .merge_partials = wide::merge_partials,
};

}  // namespace millrace::kernels

#endif
