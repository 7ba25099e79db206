// The kernels for AVX2 + FMA + F16C. This file alone is compiled with those flags; see kernel_table.h for what it must
// not do. No include but the table and the intrinsics.
#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/cpu/kernel_table.h"

namespace millrace::kernels {
namespace {

// Each text builds on those before it.
// clang-format off
#include "kernels/cpu/unroll.inl"
#include "kernels/cpu/vec_avx2.inl"
#include "kernels/cpu/linear_vec_avx2.inl"
#include "kernels/cpu/linear_sums.inl"
#include "kernels/cpu/linear.inl"
#include "kernels/cpu/pair_widened.inl"
#include "kernels/cpu/linear_rounded.inl"
#include "kernels/cpu/elementwise.inl"
#include "kernels/cpu/attention_block.inl"
#include "kernels/cpu/attention_tile.inl"
#include "kernels/cpu/attention_direct.inl"
#include "kernels/cpu/attention_lanes.inl"
#include "kernels/cpu/attention_values.inl"
#include "kernels/cpu/attention.inl"
// clang-format on

}  // namespace

extern const KernelTable kAvx2Kernels = {
    .linear = {&kLinearF32, &kLinearF16, &kLinearBF16},
    .rounded = &kLinearRounded,
    .widen = widen,
    .rms_norm = rms_norm,
    .layer_norm = layer_norm,
    .gelu = gelu,
    .add = add_rows,
    .add_scaled = add_scaled,
    .snake = snake,
    .depthwise = depthwise,
    .swiglu = swiglu,
    .rope = rope,
    .attention = attention,
    .merge_partials = merge_partials,
};

}  // namespace millrace::kernels

#endif
