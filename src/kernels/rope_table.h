// The cosine and sine table of rotary embeddings, shared by all host implementations, so that their tables are equal.
// Thread safety: pure function.
#pragma once

#include <span>

#include "kernels/ops.h"

namespace millrace::kernels {

// See Ops::rope_table. The angle is rounded to f32 (as in Hugging Face); cos and sin are taken in f64 and rounded once.
void fill_rope_table(std::span<const int32_t> positions, std::span<const float> inv_freq, float scaling, Rows cos,
                     Rows sin);

}  // namespace millrace::kernels
