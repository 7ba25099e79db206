// The cosine and sine table of rotary embeddings, shared by all host implementations, so that their tables are equal.
// Thread safety: pure function.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "kernels/ops.h"

namespace millrace::kernels {

// See Ops::rope_table. The angle is rounded to f32 (as in Hugging Face); cos and sin are taken in f64 and rounded once.
void fill_rope_table(std::span<const int32_t> positions, std::span<const float> inv_freq, float scaling, Rows cos,
                     Rows sin);

// The same where each row has a position on each of three axes, and frequency i turns by axis axes[i]. Rows whose
// positions are one integer on all axes get the bits of the function above.
void fill_rope_table(std::span<const std::array<float, 3>> positions, std::span<const uint8_t> axes,
                     std::span<const float> inv_freq, float scaling, Rows cos, Rows sin);

}  // namespace millrace::kernels
