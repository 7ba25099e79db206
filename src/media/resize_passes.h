// The weights and the two passes of resize.h, each with a plain and an AVX2 form of equal bits. For this folder alone.
// Thread safety: free functions without state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace millrace::resize_passes {

// Pillow's PRECISION_BITS: 8 bits for the result, 2 for sums outside of it.
inline constexpr int kFractionBits = 32 - 8 - 2;

// Output i is the sum of weights[i * stride + t] times input first[i] + t, over t < count[i]. The weights up to the
// stride are 0; the stride is a multiple of 4.
struct Taps {
  int stride = 0;
  std::vector<int> first;
  std::vector<int> count;
  std::vector<int32_t> weights;
  // For AVX2: each two weights as two 16-bit numbers in one, w = high * 4096 + low with low in [0, 4095].
  std::vector<int32_t> low;
  std::vector<int32_t> high;
};

// Resample.c of Pillow: precompute_coeffs and normalize_coeffs_8bpc, for the complete input.
Taps make_taps(int in_size, int out_size);

bool has_avx2();

// A row of in_pixels RGB pixels to taps.first.size() pixels. AVX2 reads up to 32 bytes behind the input row.
inline constexpr std::size_t kRowSlack = 32;
void horizontal_plain(const Taps& taps, const uint8_t* in, uint8_t* out);
void horizontal_avx2(const Taps& taps, const uint8_t* in, uint8_t* out);

// Output row `index` of `bytes` bytes, from rows `stride` bytes apart.
void vertical_plain(const Taps& taps, int index, const uint8_t* in, std::size_t stride, std::size_t bytes,
                    uint8_t* out);
void vertical_avx2(const Taps& taps, int index, const uint8_t* in, std::size_t stride, std::size_t bytes, uint8_t* out);

}  // namespace millrace::resize_passes
