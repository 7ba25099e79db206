// linear of bf16 weights and activations with VDPBF16PS (AVX512_BF16): two products in each lane of an instruction,
// added as linear_rounded.inl states. This file alone is compiled with that flag, beside AVX-512; see kernel_table.h
// for what it must not do. No include but the table and the intrinsics.
#if defined(__x86_64__)
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // gcc 12 reports the intrinsics' own "undefined" vectors
#endif
#include <immintrin.h>

#include "kernels/cpu/kernel_table.h"

namespace millrace::kernels {
namespace {

static inline uint32_t rounded_bits(float x);

// Each text builds on those before it.
// clang-format off
#include "kernels/cpu/unroll.inl"
#include "kernels/cpu/linear_vec_avx512.inl"
#include "kernels/cpu/linear_sums.inl"

typedef uint32_t XPair;
static inline XPair make_pair(float first, float second) { return rounded_bits(first) | rounded_bits(second) << 16; }
static inline LV lv_dot(XPair x, LPairs w, LV sum) {
  const __m512i pair = _mm512_set1_epi32(static_cast<int>(x));
  return {_mm512_dpbf16_ps(sum.v, (__m512bh)pair, (__m512bh)w)};
}

#include "kernels/cpu/linear_rounded.inl"
// clang-format on

}  // namespace

extern const LinearKernel kAvx512Bf16LinearKernels = kLinearRounded;

}  // namespace millrace::kernels

#endif
