// linear of bf16 weights with the tile instructions (AMX-BF16). This file alone is compiled with those flags, beside
// AVX-512; see kernel_table.h for what it must not do. No include but the table and the intrinsics.
//
// An f32 x is cut into three bf16 numbers, x = h + m + l, by truncation: h holds the upper 8 bits of the mantissa, m
// the next 8, l the rest, so that the sum is exact and the products with bf16 weights are those of f32. An element is
// one f32 sum in one tile: for each 32 of k, ascending, the products with h, then those with m, then those with l. How
// the instruction adds 32 products to an element is its own affair, always the same, and knows no other row or column.
// It takes numbers below 2^-126 for zero: parts of an x that is itself below 2^-110, and such weights.
//
// Where activations are bf16 (Activations::kBF16), x is one part, itself rounded to nearest, ties to even, and the sums
// are those of one product for each 32 of k.
#if defined(__x86_64__)
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // gcc 12 warns of the intrinsics' own "undefined" vectors
#endif
#include <immintrin.h>

#include "kernels/cpu/kernel_table.h"

namespace millrace::kernels {
namespace {

constexpr int64_t kRows = 16;   // of a tile
constexpr int64_t kDepth = 32;  // of k in one tile of weights
constexpr int kExactParts = 3;  // of an x that keeps all its bits; 1 where it is rounded
// A part: so many rows take 768 KiB of packed x for each kChunkSteps of k, which stay in the level-2 cache.
constexpr int64_t kBlockRows = 128;
constexpr int64_t kBlockPanels = 16;
constexpr int64_t kChunkSteps = 32;
// The weights of two panels stay in the level-1 cache for so many steps of 32 of k, while all tiles of x pass: 28 KiB
// with a tile of x in three parts, 40 KiB in one. Longer blocks load and store the sums less often.
template <int P>
constexpr int64_t kBlockSteps = P == 1 ? 8 : 4;
constexpr int64_t kPrefetchBytes = 4096;             // how far weights are asked for where they pass but once
constexpr int64_t kGroupFloats = 4 * kRows * kRows;  // sums of a tile of rows and two panels

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

// Tiles 0 to 3: sums; 4 to 6: the parts of x; 7: weights.
void configure(int64_t rows) {
  TileConfig config{};
  config.palette = 1;
  for (int i = 0; i < 8; ++i) {
    config.column_bytes[i] = 64;
    config.rows[i] = static_cast<uint8_t>(i < 7 ? rows : kRows);
  }
  __asm__ volatile("ldtilecfg %0" ::"m"(config));
}
void release() { __asm__ volatile("tilerelease" ::); }

// ---- x ----

inline __m512 upper_half(__m512 x) {
  return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(-65536)));
}

// 16 elements, rounded to what their upper halves hold. A NaN stays one.
inline __m512 rounded(__m512 x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i nearest = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  return _mm512_castsi512_ps(_mm512_mask_mov_epi32(nearest, _mm512_fpclass_ps_mask(x, 0x81), quiet));
}

// The parts of 16 elements. Of three: an infinity is all in the first; the first of a NaN may be an infinity, but then
// what is left is NaN.
inline void split(__m512 x, __m512 (&parts)[1]) { parts[0] = rounded(x); }
inline void split(__m512 x, __m512 (&parts)[kExactParts]) {
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

// A tile: for each 32 of k, for each of P parts, its rows of 32 bf16.
template <int P>
void pack(const float* x, int64_t x_stride, int64_t rows, int64_t k, int64_t tile_begin, int64_t tile_end,
          void* packed) {
  for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
    const int64_t row = tile * kRows;
    const int64_t height = rows - row < kRows ? rows - row : kRows;
    char* to = static_cast<char*>(packed) + row * padded(k) * 2 * P;
    for (int64_t r = 0; r < height; ++r) {
      const float* from = x + (row + r) * x_stride;
      for (int64_t i = 0; i < k; i += kDepth) {
        __m512 low[P], high[P];
        split(_mm512_maskz_loadu_ps(first(k - i), from + i), low);
        split(_mm512_maskz_loadu_ps(first(k - i - 16), from + i + 16), high);
        char* line = to + i / kDepth * P * height * 64 + r * 64;
        for (int p = 0; p < P; ++p) store_bf16(line + p * height * 64, low[p], high[p]);
      }
    }
  }
}

// ---- sums ----

// One tile of rows times two panels (4 tiles of columns) or what is left of them, some steps of k.
struct Group {
  const char* x;          // at the first step
  int64_t height;         // rows
  const char* weight[2];  // at the first step
  int64_t stride[2];      // bytes of a pair of k in the panel
  const char* ahead[2];   // weights that will be wanted
  int64_t ahead_lines;    // of each panel to ask for with each step
  int64_t steps;
  float* sums;  // [4][16][16]
  bool first;
};

#define MULTIPLY_COLUMN(c, from, stride) \
  TILE_LOAD(7, from, stride);            \
  TILE_MULTIPLY(c, 4, 7);                \
  if constexpr (P > 1) {                 \
    TILE_MULTIPLY(c, 5, 7);              \
    TILE_MULTIPLY(c, 6, 7);              \
  }

template <int C, int P>
inline __attribute__((always_inline)) void multiply(const Group& group) {
  if (group.first) {
    TILE_ZERO(0);
    TILE_ZERO(1);
    TILE_ZERO(2);
    TILE_ZERO(3);
  } else {
    TILE_LOAD(0, group.sums, 64);
    if constexpr (C > 1) TILE_LOAD(1, group.sums + 256, 64);
    if constexpr (C > 2) TILE_LOAD(2, group.sums + 512, 64);
    if constexpr (C > 3) TILE_LOAD(3, group.sums + 768, 64);
  }
  const char *x = group.x, *w0 = group.weight[0], *w1 = group.weight[1];
  const char *ahead0 = group.ahead[0], *ahead1 = group.ahead[1];
  const int64_t part = group.height * 64, stride0 = group.stride[0], stride1 = group.stride[1];
  for (int64_t step = 0; step < group.steps; ++step, x += P * part, w0 += kRows * stride0, w1 += kRows * stride1) {
    for (int64_t i = 0; i < group.ahead_lines; ++i, ahead0 += 64, ahead1 += 64) {
      _mm_prefetch(ahead0, _MM_HINT_T1);
      if constexpr (C > 2) _mm_prefetch(ahead1, _MM_HINT_T1);
    }
    TILE_LOAD(4, x, 64);
    if constexpr (P > 1) {
      TILE_LOAD(5, x + part, 64);
      TILE_LOAD(6, x + 2 * part, 64);
    }
    MULTIPLY_COLUMN(0, w0, stride0);
    if constexpr (C > 1) {
      MULTIPLY_COLUMN(1, w0 + 64, stride0);
    }
    if constexpr (C > 2) {
      MULTIPLY_COLUMN(2, w1, stride1);
    }
    if constexpr (C > 3) {
      MULTIPLY_COLUMN(3, w1 + 64, stride1);
    }
  }
  TILE_STORE(0, group.sums, 64);
  if constexpr (C > 1) TILE_STORE(1, group.sums + 256, 64);
  if constexpr (C > 2) TILE_STORE(2, group.sums + 512, 64);
  if constexpr (C > 3) TILE_STORE(3, group.sums + 768, 64);
}

template <int P>
void multiply_group(const Group& group, int64_t columns) {
  if (columns > 48) return multiply<4, P>(group);
  if (columns > 32) return multiply<3, P>(group);
  if (columns > 16) return multiply<2, P>(group);
  multiply<1, P>(group);
}

// Asks for what write() will write, so that its lines are here when the sums are.
void fetch_y(const LinearPart& part, int64_t row, int64_t column, int64_t height, int64_t columns) {
  for (int64_t r = 0; r < height; ++r) {
    const float* y = part.y + (row + r) * part.y_stride + column;
    for (int64_t c = 0; c < columns; c += 16) __builtin_prefetch(y + c, 1);
  }
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

// The weights of two panels from `step` on, and which ones to ask for meanwhile: the same panels' next steps, or the
// first ones of the panels after them. Asking does no harm where there are none.
Group group_of(const LinearPart& part, int64_t panel, int64_t step, int64_t steps) {
  const int64_t depth = padded(part.k);
  const int64_t tiles = part.tile_end - part.tile_begin;
  Group group{};
  for (int p = 0; p < 2; ++p) {
    const bool exists = part.n > (panel + p) * 32;
    const int64_t width = part.n - (panel + p) * 32 > 16 ? 32 : 16;
    const int64_t panel_bytes = 32 * depth * 2, step_bytes = kRows * width * 4;
    group.stride[p] = width * 4;
    group.weight[p] = part.weight + (exists ? (panel + p) * panel_bytes + step * step_bytes : 0);
    if (tiles == 1) {
      group.ahead[p] = group.weight[p] + kPrefetchBytes;
    } else if (step + steps < depth / kDepth) {
      group.ahead[p] = group.weight[p] + steps * step_bytes;
    } else {
      group.ahead[p] = group.weight[p] - step * step_bytes + 2 * panel_bytes;
    }
  }
  group.ahead_lines = (kRows * 2 + tiles - 1) / tiles;
  group.steps = steps;
  group.first = step == 0;
  return group;
}

// Steps [step, step + steps) of k for two panels and all tiles of rows. `sums`: kGroupFloats for each tile.
template <int P>
void run_block(const LinearPart& part, int64_t panel, int64_t step, int64_t steps, float* sums, int64_t& configured) {
  const int64_t depth = padded(part.k);
  const int64_t end = part.n < part.panel_end * 32 ? part.n : part.panel_end * 32;
  const int64_t columns = end - panel * 32 < 64 ? end - panel * 32 : 64;
  Group group = group_of(part, panel, step, steps);
  for (int64_t tile = part.tile_begin; tile < part.tile_end; ++tile, sums += kGroupFloats) {
    const int64_t left = part.rows - tile * kRows;
    group.height = left < kRows ? left : kRows;
    if (group.height != configured) configure(configured = group.height);
    group.x = static_cast<const char*>(part.packed_x) + (tile * kRows * depth + step * group.height * kDepth) * 2 * P;
    group.sums = sums;
    const bool last = step + steps >= depth / kDepth;
    if (last) fetch_y(part, tile * kRows, panel * 32, group.height, columns);
    multiply_group<P>(group, columns);
    for (int p = 0; p < 2; ++p) group.ahead[p] += group.ahead_lines * 64 * steps;
    if (!last) continue;
    for (int64_t column = 0; column < columns; column += 16) {
      write(part, tile * kRows, panel * 32 + column, group.height, sums + column * kRows);
    }
  }
}

template <int P>
void many(const LinearPart& part) {
  const int64_t steps = padded(part.k) / kDepth;
  const int64_t tiles = part.tile_end - part.tile_begin;
  // One tile of rows keeps its sums in the registers; more take turns over chunks of k that fit the level-1 cache.
  const int64_t all_steps = steps > 0 ? steps : 1;
  const int64_t block = tiles == 1 ? all_steps : kBlockSteps<P>, chunk = tiles == 1 ? all_steps : kChunkSteps;
  int64_t configured = -1;
  for (int64_t from = 0; from < all_steps; from += chunk) {
    const int64_t end = steps < from + chunk ? steps : from + chunk;
    float* sums = part.scratch;
    for (int64_t panel = part.panel_begin; panel < part.panel_end; panel += 2) {
      for (int64_t step = from; step < end || step == 0; step += block) {
        run_block<P>(part, panel, step, end - step < block ? end - step : block, sums, configured);
      }
      if (steps > chunk) sums += tiles * kGroupFloats;
    }
  }
  release();  // the thread's tiles need not be saved when it is switched out
}

template <int P>
constexpr LinearKernel kernel() {
  return {
      .few_rows = 0,
      .row_tile = kRows,
      .even_tiles = false,
      .element_bytes = 2 * P,
      .depth = kDepth,
      .block_rows = kBlockRows,
      .block_panels = kBlockPanels,
      .scratch_floats = (kBlockRows / kRows + 1) * (kBlockPanels / 2) * kGroupFloats,
      .few = nullptr,
      .many = many<P>,
      .pack = pack<P>,
  };
}

}  // namespace

extern const LinearKernel kAmxLinearKernels = kernel<kExactParts>();
extern const LinearKernel kAmxRoundedLinearKernels = kernel<1>();

}  // namespace millrace::kernels

#endif
