// linear of bf16 weights with the tile instructions (AMX-BF16). This file alone is compiled with those flags, beside
// AVX-512; see kernel_table.h for what it must not do. No include but the table and the intrinsics.
//
// An f32 x is cut into three bf16 numbers, x = h + m + l, by truncation: h holds the upper 8 bits of the mantissa, m
// the next 8, l the rest, so that the sum is exact and the products with bf16 weights are those of f32. An element is
// one f32 sum in one tile: for each 32 of k, ascending, the products with h, then those with m, then those with l. How
// the instruction adds 32 products to an element is its own affair, always the same, and knows no other row or column.
// It takes numbers below 2^-126 for zero: parts of an x that is itself below 2^-110, and such weights.
#if defined(__x86_64__)
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // gcc 12 says it of the intrinsics' own "undefined" vectors
#endif
#include <immintrin.h>

#include "kernels/cpu/kernel_table.h"

namespace millrace::kernels {
namespace {

constexpr int64_t kRows = 16;          // of a tile
constexpr int64_t kDepth = 32;         // of k in one tile of weights
constexpr int64_t kParts = 3;          // of an x
constexpr int64_t kBlockRows = 256;    // sums of a part: 256 x 512 f32 = 512 KiB, in the level-2 cache
constexpr int64_t kBlockPanels = 16;   // of 32 columns
constexpr int64_t kBlockSteps = 4;     // of k: two tiles of x in three parts are 24 KiB, in the level-1 cache
constexpr int64_t kAheadBytes = 8192;  // how far weights are asked for where they pass but once
constexpr int64_t kPairFloats = 4 * kRows * kRows;  // sums of two tiles of rows and a panel

struct alignas(64) TileConfig {
  uint8_t palette, start_row, reserved[14];
  uint16_t column_bytes[16];
  uint8_t rows[16];
};

// The compiler knows neither what the instructions read nor which tiles they use.
#define TILE_ZERO(t) __asm__ volatile("tilezero %%tmm" #t ::)
#define TILE_LOAD(t, from, stride) \
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t ::"r"(from), "r"(static_cast<int64_t>(stride)) : "memory")
#define TILE_STORE(t, to, stride) \
  __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" ::"r"(to), "r"(static_cast<int64_t>(stride)) : "memory")
// c += a b: a holds rows of x, b pairs of k of 16 columns.
#define TILE_MULTIPLY(c, a, b) __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::)

// Tiles 0 to 3: sums (rows 0, columns 0), (0, 1), (1, 0), (1, 1); 4, 5: x; 6, 7: weights.
void configure(int64_t rows0, int64_t rows1) {
  TileConfig config{};
  config.palette = 1;
  for (int i = 0; i < 8; ++i) {
    config.column_bytes[i] = 64;
    config.rows[i] = static_cast<uint8_t>(i < 2 || i == 4 ? rows0 : i < 6 ? rows1 : kRows);
  }
  __asm__ volatile("ldtilecfg %0" ::"m"(config));
}
void release() { __asm__ volatile("tilerelease" ::); }

// ---- x
// ----------------------------------------------------------------------------------------------------------------

inline __m512 upper_half(__m512 x) {
  return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(-65536)));
}

// The three parts of 16 elements. An infinity is all in the first; the first of a NaN may be an infinity, but then what
// is left is NaN.
inline void split(__m512 x, __m512 (&parts)[kParts]) {
  const __mmask16 infinite = _mm512_fpclass_ps_mask(x, 0x18);
  parts[0] = upper_half(x);
  const __m512 rest = _mm512_mask_sub_ps(_mm512_setzero_ps(), static_cast<__mmask16>(~infinite), x, parts[0]);
  parts[1] = upper_half(rest);
  parts[2] = _mm512_sub_ps(rest, parts[1]);
}

inline void store_bf16(void* to, __m512 a, __m512 b) {
  const __m256i low = _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(a), 16));
  const __m256i high = _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(b), 16));
  _mm512_storeu_si512(to, _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1));
}

int64_t padded(int64_t k) { return (k + kDepth - 1) / kDepth * kDepth; }
inline __mmask16 first(int64_t n) { return static_cast<__mmask16>(n >= 16 ? 0xffff : n <= 0 ? 0 : (1 << n) - 1); }

// A tile: for each 32 of k, for each part, its rows of 32 bf16.
void pack(const float* x, int64_t x_stride, int64_t rows, int64_t k, int64_t tile_begin, int64_t tile_end,
          void* packed) {
  for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
    const int64_t row = tile * kRows;
    const int64_t height = rows - row < kRows ? rows - row : kRows;
    char* to = static_cast<char*>(packed) + row * padded(k) * 2 * kParts;
    for (int64_t r = 0; r < height; ++r) {
      const float* from = x + (row + r) * x_stride;
      for (int64_t i = 0; i < k; i += kDepth) {
        __m512 low[kParts], high[kParts];
        split(_mm512_maskz_loadu_ps(first(k - i), from + i), low);
        split(_mm512_maskz_loadu_ps(first(k - i - 16), from + i + 16), high);
        char* line = to + i / kDepth * kParts * height * 64 + r * 64;
        for (int p = 0; p < kParts; ++p) store_bf16(line + p * height * 64, low[p], high[p]);
      }
    }
  }
}

// ---- sums
// -------------------------------------------------------------------------------------------------------------

// Two tiles of rows at most, one panel, some steps of k.
struct Pair {
  const char* x[2];    // at the first step
  int64_t height[2];   // the second may be 0
  const char* weight;  // at the first step
  int64_t width;       // of the panel: 16 or 32
  int64_t steps;
  float* sums;
  bool first;
};

template <int R, int C>
inline __attribute__((always_inline)) void multiply(const Pair& pair, int64_t ahead) {
  if (pair.first) {
    TILE_ZERO(0);
    TILE_ZERO(1);
    TILE_ZERO(2);
    TILE_ZERO(3);
  } else {
    TILE_LOAD(0, pair.sums, 64);
    if (C > 1) TILE_LOAD(1, pair.sums + 256, 64);
    if (R > 1) TILE_LOAD(2, pair.sums + 512, 64);
    if (R > 1 && C > 1) TILE_LOAD(3, pair.sums + 768, 64);
  }
  const char* w = pair.weight;
  const char* x0 = pair.x[0];
  const char* x1 = pair.x[1];
  for (int64_t step = 0; step < pair.steps; ++step, w += kRows * C * 64) {
    if (ahead > 0) {
      for (int i = 0; i < kRows * C; ++i) _mm_prefetch(w + ahead + i * 64, _MM_HINT_T1);
    }
    TILE_LOAD(6, w, C * 64);
    if (C > 1) TILE_LOAD(7, w + 64, C * 64);
    for (int p = 0; p < kParts; ++p) {
      TILE_LOAD(4, x0, 64);
      TILE_MULTIPLY(0, 4, 6);
      if (C > 1) TILE_MULTIPLY(1, 4, 7);
      x0 += pair.height[0] * 64;
      if (R > 1) {
        TILE_LOAD(5, x1, 64);
        TILE_MULTIPLY(2, 5, 6);
        if (C > 1) TILE_MULTIPLY(3, 5, 7);
        x1 += pair.height[1] * 64;
      }
    }
  }
  TILE_STORE(0, pair.sums, 64);
  if (C > 1) TILE_STORE(1, pair.sums + 256, 64);
  if (R > 1) TILE_STORE(2, pair.sums + 512, 64);
  if (R > 1 && C > 1) TILE_STORE(3, pair.sums + 768, 64);
}

void multiply_pair(const Pair& pair, int64_t ahead) {
  const bool two = pair.height[1] > 0;
  if (pair.width == 32) return two ? multiply<2, 2>(pair, ahead) : multiply<1, 2>(pair, ahead);
  return two ? multiply<2, 1>(pair, ahead) : multiply<1, 1>(pair, ahead);
}

// Finished sums to y: then + bias, then + the old y.
void write(const LinearPart& part, int64_t row, int64_t column, int64_t height, const float* sums) {
  const __mmask16 mask = first(part.n - column);
  const __m512 bias = part.bias != nullptr ? _mm512_maskz_loadu_ps(mask, part.bias + column) : _mm512_setzero_ps();
  for (int64_t r = 0; r < height; ++r) {
    float* y = part.y + (row + r) * part.y_stride + column;
    __m512 value = _mm512_loadu_ps(sums + r * kRows);
    if (part.bias != nullptr) value = _mm512_add_ps(value, bias);
    if (part.accumulate) value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(mask, y));
    _mm512_mask_storeu_ps(y, mask, value);
  }
}

int64_t height_of(const LinearPart& part, int64_t tile) {
  if (tile >= part.tile_end) return 0;
  const int64_t left = part.rows - tile * kRows;
  return left < kRows ? left : kRows;
}

void write_pair(const LinearPart& part, int64_t tile, int64_t panel, int64_t width, const float* sums) {
  for (int64_t t = 0; t < 2; ++t) {
    for (int64_t column = 0; column < width; column += 16) {
      if (panel * 32 + column >= part.n) break;
      write(part, (tile + t) * kRows, panel * 32 + column, height_of(part, tile + t), sums + t * 512 + column * 16);
    }
  }
}

// All panels of the part for one pair of tiles of rows, steps [step, step + steps) of k.
void run_pair(const LinearPart& part, int64_t tile, int64_t step, int64_t steps, int64_t ahead, float* sums) {
  const int64_t depth = padded(part.k);
  const int64_t heights[2] = {height_of(part, tile), height_of(part, tile + 1)};
  const char* x = static_cast<const char*>(part.packed_x) + tile * kRows * depth * 2 * kParts;
  Pair pair{};
  for (int t = 0; t < 2; ++t) {
    pair.height[t] = heights[t];
    pair.x[t] = x + t * kRows * depth * 2 * kParts + step * kParts * heights[t] * 64;
  }
  pair.steps = steps;
  pair.first = step == 0;
  for (int64_t panel = part.panel_begin; panel < part.panel_end; ++panel, sums += kPairFloats) {
    pair.width = part.n - panel * 32 > 16 ? 32 : 16;
    pair.weight = part.weight + panel * 32 * depth * 2 + step * kRows * pair.width * 4;
    pair.sums = sums;
    multiply_pair(pair, ahead);
    if (step + steps == depth / kDepth) write_pair(part, tile, panel, pair.width, sums);
  }
}

void many(const LinearPart& part) {
  const int64_t steps = padded(part.k) / kDepth;
  const int64_t panels = part.panel_end - part.panel_begin;
  // One pair of row tiles keeps its sums in the registers; more take turns over pieces of k that fit the caches.
  const bool single = part.tile_end - part.tile_begin <= 2;
  const int64_t block = single || steps == 0 ? (steps > 0 ? steps : 1) : kBlockSteps;
  int64_t configured[2] = {-1, -1};
  for (int64_t step = 0; step < steps || step == 0; step += block) {
    float* sums = part.scratch;
    for (int64_t tile = part.tile_begin; tile < part.tile_end; tile += 2, sums += panels * kPairFloats) {
      const int64_t heights[2] = {height_of(part, tile), height_of(part, tile + 1)};
      if (heights[0] != configured[0] || heights[1] != configured[1]) {
        configure(heights[0], heights[1] > 0 ? heights[1] : 1);
        configured[0] = heights[0];
        configured[1] = heights[1];
      }
      run_pair(part, tile, step, steps - step < block ? steps - step : block, single ? kAheadBytes : 0, sums);
    }
  }
  release();  // the thread's tiles need not be saved when it is switched out
}

}  // namespace

extern const LinearKernel kAmxLinearKernels = {
    .few_rows = 0,
    .row_tile = kRows,
    .even_tiles = false,
    .element_bytes = 2 * kParts,
    .depth = kDepth,
    .block_rows = kBlockRows,
    .block_panels = kBlockPanels,
    .scratch_floats = kBlockRows / kRows / 2 * kBlockPanels * kPairFloats,
    .few = nullptr,
    .many = many,
    .pack = pack,
};

}  // namespace millrace::kernels

#endif
