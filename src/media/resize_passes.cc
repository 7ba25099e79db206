#include "media/resize_passes.h"

#include <algorithm>

#include "base/cpu_info.h"
#include "base/status.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace millrace::resize_passes {
namespace {

constexpr int32_t kHalf = 1 << (kFractionBits - 1);

uint8_t to_byte(int32_t sum) { return static_cast<uint8_t>(std::clamp(sum >> kFractionBits, 0, 255)); }

void vertical_columns(const Taps& taps, int index, const uint8_t* in, std::size_t stride, std::size_t begin,
                      std::size_t end, uint8_t* out) {
  const auto i = static_cast<std::size_t>(index);
  const int32_t* weights = taps.weights.data() + i * static_cast<std::size_t>(taps.stride);
  const uint8_t* first = in + static_cast<std::size_t>(taps.first[i]) * stride;
  constexpr std::size_t kChunk = 256;
  for (std::size_t at = begin; at < end; at += kChunk) {
    const std::size_t size = std::min(kChunk, end - at);
    int32_t sums[kChunk];
    std::fill_n(sums, size, kHalf);
    for (int t = 0; t < taps.count[i]; ++t) {
      const uint8_t* row = first + static_cast<std::size_t>(t) * stride + at;
      for (std::size_t x = 0; x < size; ++x) sums[x] += row[x] * weights[t];
    }
    for (std::size_t x = 0; x < size; ++x) out[at + x] = to_byte(sums[x]);
  }
}

}  // namespace

bool has_avx2() { return cpu_info().avx2; }

void horizontal_plain(const Taps& taps, const uint8_t* in, uint8_t* out) {
  for (std::size_t i = 0; i < taps.first.size(); ++i, out += 3) {
    const int32_t* weights = taps.weights.data() + i * static_cast<std::size_t>(taps.stride);
    const uint8_t* pixel = in + 3 * static_cast<std::size_t>(taps.first[i]);
    int32_t r = kHalf, g = kHalf, b = kHalf;
    for (int t = 0; t < taps.count[i]; ++t, pixel += 3) {
      r += pixel[0] * weights[t];
      g += pixel[1] * weights[t];
      b += pixel[2] * weights[t];
    }
    out[0] = to_byte(r);
    out[1] = to_byte(g);
    out[2] = to_byte(b);
  }
}

void vertical_plain(const Taps& taps, int index, const uint8_t* in, std::size_t stride, std::size_t bytes,
                    uint8_t* out) {
  vertical_columns(taps, index, in, stride, 0, bytes, out);
}

#if defined(__x86_64__)

// Two taps at once: vpmaddwd multiplies pairs of 16-bit numbers, once with the low and once with the high part of the
// weights. Sums of the parts may wrap; the sum of both is below 2^31 and thus exact.

__attribute__((target("avx2"))) void horizontal_avx2(const Taps& taps, const uint8_t* in, uint8_t* out) {
  // Four pixels: red, green and blue of the first two beside each other in the lower half, of the others in the upper.
  const __m256i pairs = _mm256_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1,  //
                                         6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1);
  const __m256i spread = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);
  for (std::size_t i = 0; i < taps.first.size(); ++i, out += 3) {
    const std::size_t weights = i * static_cast<std::size_t>(taps.stride) / 2;
    const uint8_t* pixel = in + 3 * static_cast<std::size_t>(taps.first[i]);
    __m256i low = _mm256_setzero_si256();
    __m256i high = _mm256_setzero_si256();
    for (int t = 0; t < taps.count[i]; t += 4, pixel += 12) {
      const std::size_t at = weights + static_cast<std::size_t>(t) / 2;
      const __m128i four = _mm_loadu_si128(reinterpret_cast<const __m128i*>(pixel));
      const __m256i values = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(four), pairs);
      const __m128i l = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(taps.low.data() + at));
      const __m128i h = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(taps.high.data() + at));
      const __m256i wl = _mm256_permutevar8x32_epi32(_mm256_castsi128_si256(l), spread);
      const __m256i wh = _mm256_permutevar8x32_epi32(_mm256_castsi128_si256(h), spread);
      low = _mm256_add_epi32(low, _mm256_madd_epi16(values, wl));
      high = _mm256_add_epi32(high, _mm256_madd_epi16(values, wh));
    }
    const __m256i sum = _mm256_add_epi32(low, _mm256_slli_epi32(high, 12));
    __m128i rgb = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    rgb = _mm_srai_epi32(_mm_add_epi32(rgb, _mm_set1_epi32(kHalf)), kFractionBits);
    rgb = _mm_packs_epi32(rgb, rgb);
    const auto packed = static_cast<uint32_t>(_mm_cvtsi128_si32(_mm_packus_epi16(rgb, rgb)));
    out[0] = static_cast<uint8_t>(packed);
    out[1] = static_cast<uint8_t>(packed >> 8);
    out[2] = static_cast<uint8_t>(packed >> 16);
  }
}

__attribute__((target("avx2"))) void vertical_avx2(const Taps& taps, int index, const uint8_t* in, std::size_t stride,
                                                   std::size_t bytes, uint8_t* out) {
  const auto i = static_cast<std::size_t>(index);
  const std::size_t weights = i * static_cast<std::size_t>(taps.stride) / 2;
  const int count = taps.count[i];
  const uint8_t* first = in + static_cast<std::size_t>(taps.first[i]) * stride;
  std::size_t x = 0;
  for (; x + 16 <= bytes; x += 16) {
    __m256i low[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    __m256i high[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    for (int t = 0; t < count; t += 2) {
      const uint8_t* row = first + static_cast<std::size_t>(t) * stride + x;
      // The weight behind the last one is 0: any row will do.
      const uint8_t* other = t + 1 < count ? row + stride : row;
      const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row));
      const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(other));
      const __m256i left = _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(a, b));
      const __m256i right = _mm256_cvtepu8_epi16(_mm_unpackhi_epi8(a, b));
      const __m256i wl = _mm256_set1_epi32(taps.low[weights + static_cast<std::size_t>(t) / 2]);
      const __m256i wh = _mm256_set1_epi32(taps.high[weights + static_cast<std::size_t>(t) / 2]);
      low[0] = _mm256_add_epi32(low[0], _mm256_madd_epi16(left, wl));
      low[1] = _mm256_add_epi32(low[1], _mm256_madd_epi16(right, wl));
      high[0] = _mm256_add_epi32(high[0], _mm256_madd_epi16(left, wh));
      high[1] = _mm256_add_epi32(high[1], _mm256_madd_epi16(right, wh));
    }
    __m256i sums[2];
    for (int half = 0; half < 2; ++half) {
      const __m256i sum = _mm256_add_epi32(low[half], _mm256_slli_epi32(high[half], 12));
      sums[half] = _mm256_srai_epi32(_mm256_add_epi32(sum, _mm256_set1_epi32(kHalf)), kFractionBits);
    }
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(sums[0], sums[1]), 0xD8);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + x),
                     _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
  }
  vertical_columns(taps, index, in, stride, x, bytes, out);
}

#else

void horizontal_avx2(const Taps& taps, const uint8_t* in, uint8_t* out) { horizontal_plain(taps, in, out); }
void vertical_avx2(const Taps& taps, int index, const uint8_t* in, std::size_t stride, std::size_t bytes,
                   uint8_t* out) {
  vertical_plain(taps, index, in, stride, bytes, out);
}

#endif

}  // namespace millrace::resize_passes
