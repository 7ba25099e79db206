#if defined(__x86_64__)
#include "kernels/testing/panels_evex256.h"

#include <immintrin.h>

namespace millrace::kernels::testing {
namespace {

// Each text builds on those before it.
// clang-format off
#include "kernels/cpu/unroll.inl"
#include "kernels/cpu/panel_terms.inl"
#include "kernels/cpu/panel_vec_avx2.inl"

static inline Ints dot(Ints sum, Ints w, Ints x) { return _mm256_dpbusd_epi32(sum, w, x); }

#include "kernels/cpu/panels_vnni256.inl"
// clang-format on

}  // namespace

extern const PanelTable kEvex256Panels = {
    .tile_rows = vector_tile_rows, .quantize = quantize, .multiply = multiply, .scratch_bytes_per_block = 0};

}  // namespace millrace::kernels::testing

#endif
