// Products with panels for AVX2 + FMA + F16C. This file alone is compiled with those flags; see kernel_table.h for what
// it must not do. No include but the table and the intrinsics.
//
// VPMADDUBSW multiplies unsigned by signed bytes and adds pairs into 16 bits, saturating. Q8_0 gives it |w| and x with
// w's sign: 2 * 128 * 127 fits. The others are unsigned as they are, and their pairs can be added for a while before
// they are widened: 8 pairs of Q4 (8 * 2 * 15 * 127 = 30480), 4 of Q5 (31496), 2 of Q6 (32004).
#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/cpu/panel_table.h"

namespace millrace::kernels {
namespace {

#include "kernels/cpu/unroll.inl"

constexpr int kMostRows = 4;  // of a tile: their sums over both halves of a panel are half of the registers
constexpr int kLanes = 8;     // a vector holds half a panel: 8 rows, four elements of k

static inline __m256i load_bytes(const void* p) { return _mm256_load_si256(static_cast<const __m256i*>(p)); }
static inline __m256 load_f16(const uint8_t* p) {
  return _mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(p)));
}
// 8 bytes as floats.
static inline __m256 load_u8(const uint8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
static inline __m256 load_i8(const uint8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
static inline __m256i four(const int8_t* p) {
  int32_t word;
  __builtin_memcpy(&word, p, 4);
  return _mm256_set1_epi32(word);
}
static inline float float_at(const int32_t* p) {
  float value;
  __builtin_memcpy(&value, p, 4);
  return value;
}

// The products of a block of Q8_0 with both halves of a panel, on top of isum. Both at once, as each element of x is
// fetched once for them; in turn, the compiler would keep all of x's elements for the second half, in memory.
template <int M>
static inline __attribute__((always_inline)) void multiply_q8_0(const uint8_t* block, const int8_t* x,
                                                                __m256i (&isum)[M][2]) {
  const __m256i ones = _mm256_set1_epi16(1);
  UNROLL for (int j = 0; j < 8; ++j) {
    const __m256i w0 = load_bytes(block + j * 64), w1 = load_bytes(block + j * 64 + 32);
    const __m256i most0 = _mm256_abs_epi8(w0), most1 = _mm256_abs_epi8(w1);
    UNROLL for (int m = 0; m < M; ++m) {
      const __m256i xs = four(x + m * kPanelBlock + 4 * j);
      const __m256i pairs0 = _mm256_maddubs_epi16(most0, _mm256_sign_epi8(xs, w0));
      const __m256i pairs1 = _mm256_maddubs_epi16(most1, _mm256_sign_epi8(xs, w1));
      isum[m][0] = _mm256_add_epi32(isum[m][0], _mm256_madd_epi16(pairs0, ones));
      isum[m][1] = _mm256_add_epi32(isum[m][1], _mm256_madd_epi16(pairs1, ones));
    }
  }
}

// The same of Q4_0: unsigned weights, whose pairs are widened once.
template <int M>
static inline __attribute__((always_inline)) void multiply_q4_0(const uint8_t* block, const int8_t* x,
                                                                __m256i (&isum)[M][2]) {
  const __m256i fifteen = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
  __m256i pairs[M][2];
  UNROLL for (int m = 0; m < M; ++m) pairs[m][0] = pairs[m][1] = _mm256_setzero_si256();
  UNROLL for (int j = 0; j < 8; ++j) {
    const __m256i both0 = load_bytes(block + j % 4 * 64), both1 = load_bytes(block + j % 4 * 64 + 32);
    const __m256i w0 = _mm256_and_si256(j < 4 ? both0 : _mm256_srli_epi16(both0, 4), fifteen);
    const __m256i w1 = _mm256_and_si256(j < 4 ? both1 : _mm256_srli_epi16(both1, 4), fifteen);
    UNROLL for (int m = 0; m < M; ++m) {
      const __m256i xs = four(x + m * kPanelBlock + 4 * j);
      pairs[m][0] = _mm256_add_epi16(pairs[m][0], _mm256_maddubs_epi16(w0, xs));
      pairs[m][1] = _mm256_add_epi16(pairs[m][1], _mm256_maddubs_epi16(w1, xs));
    }
  }
  UNROLL for (int m = 0; m < M; ++m) {
    UNROLL for (int h = 0; h < 2; ++h) isum[m][h] = _mm256_add_epi32(isum[m][h], _mm256_madd_epi16(pairs[m][h], ones));
  }
}

// Half of the weights q[j] of a block; block points at that half. Unsigned but for Q8_0.
template <PanelKind kind>
static inline __attribute__((always_inline)) __m256i weights(const uint8_t* block, int j) {
  __m256i both = load_bytes(block + (j % 4) * 64);
  if (j >= 4) both = _mm256_srli_epi16(both, 4);
  __m256i q = _mm256_and_si256(both, _mm256_set1_epi8(15));
  if constexpr (kind == PanelKind::kQ5_K) {
    const __m256i plane = load_bytes(block + 256);
    const __m256i bit = j < 4 ? _mm256_slli_epi16(plane, 4 - j) : _mm256_srli_epi16(plane, j - 4);
    q = _mm256_or_si256(q, _mm256_and_si256(bit, _mm256_set1_epi8(16)));
  }
  if constexpr (kind == PanelKind::kQ6_K) {
    const __m256i plane = load_bytes(block + 256 + (j / 4) * 64);
    const int shift = 2 * (j % 4);
    const __m256i bits = shift <= 4 ? _mm256_slli_epi16(plane, 4 - shift) : _mm256_srli_epi16(plane, shift - 4);
    q = _mm256_or_si256(q, _mm256_and_si256(bits, _mm256_set1_epi8(48)));
  }
  return q;
}

// isum[m] += the products of q[kFirst .. kLast) with row m's elements. x points at the block in the first row.
template <PanelKind kind, int kFirst, int kLast, int M>
static inline __attribute__((always_inline)) void multiply_block(const uint8_t* block, const int8_t* x,
                                                                 __m256i (&isum)[M]) {
  const __m256i ones = _mm256_set1_epi16(1);
  constexpr int kPairs = kind == PanelKind::kQ6_K ? 2 : kind == PanelKind::kQ5_K ? 4 : 8;
  UNROLL for (int run = 0; run < (kLast - kFirst) / kPairs; ++run) {
    const int begin = kFirst + run * kPairs;
    const __m256i w0 = weights<kind>(block, begin);
    __m256i pairs[M];
    UNROLL for (int m = 0; m < M; ++m) pairs[m] = _mm256_maddubs_epi16(w0, four(x + m * kPanelBlock + 4 * begin));
    UNROLL for (int i = 1; i < kPairs; ++i) {
      const __m256i w = weights<kind>(block, begin + i);
      UNROLL for (int m = 0; m < M; ++m) {
        pairs[m] = _mm256_add_epi16(pairs[m], _mm256_maddubs_epi16(w, four(x + m * kPanelBlock + 4 * (begin + i))));
      }
    }
    UNROLL for (int m = 0; m < M; ++m) isum[m] = _mm256_add_epi32(isum[m], _mm256_madd_epi16(pairs[m], ones));
  }
}

// Few rows wait for memory: what comes after the page in work is asked for early, across the ends of pages, where the
// processor's own prefetcher stops. Into the second-level cache: it has room for more misses at once than the first.
constexpr int64_t kStreamRows = 32;
constexpr int64_t kAhead = 4096;
template <int64_t bytes>
static inline void prefetch(const uint8_t* block) {
  UNROLL for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(block + kAhead + i, 0, 2);
}

// Sums of the panel's columns of one row to y.
static inline void finish(const PanelPart& part, int64_t panel, int64_t row, const __m256 (&acc)[2]) {
  float sums[kPanelRows];
  _mm256_storeu_ps(sums, acc[0]);
  _mm256_storeu_ps(sums + kLanes, acc[1]);
  const int64_t first = panel * kPanelRows;
  const int64_t count = part.columns - first < kPanelRows ? part.columns - first : kPanelRows;
  float* y = part.y + row * part.y_stride + first;
  for (int64_t n = 0; n < count; ++n) {
    float value = sums[n];
    if (part.bias != nullptr) value += part.bias[first + n];
    if (part.accumulate) value += y[n];
    y[n] = value;
  }
}

template <PanelKind kind, int M>
static void tile_small(const PanelPart& part, int64_t panel, int64_t row) {
  constexpr PanelFormat format = kPanelFormats[static_cast<int>(kind)];
  const uint8_t* from = part.panels + panel * part.panel_bytes;
  const uint8_t* header = from;
  const int8_t* x = part.x.q + row * part.blocks * kPanelBlock;
  const float* d = part.x.d + row * part.blocks;
  const int32_t* terms = part.x.terms + row * part.blocks;
  __m256 acc[M][2];
  UNROLL for (int m = 0; m < M; ++m) acc[m][0] = acc[m][1] = _mm256_setzero_ps();
  for (int64_t b = 0; b < part.blocks; ++b) {
    if (b % 2 == 0) {
      header = from;
      if (part.rows <= kStreamRows) prefetch<format.header_bytes>(header);
      from += format.header_bytes;
    }
    __m256i isum[M][2];
    if constexpr (kind == PanelKind::kQ8_0) {
      UNROLL for (int m = 0; m < M; ++m) isum[m][0] = isum[m][1] = _mm256_setzero_si256();
      multiply_q8_0<M>(from, x + b * M * kPanelBlock, isum);
    } else {
      UNROLL for (int m = 0; m < M; ++m) isum[m][0] = isum[m][1] = _mm256_set1_epi32(terms[b * M + m]);
      multiply_q4_0<M>(from, x + b * M * kPanelBlock, isum);
    }
    UNROLL for (int half = 0; half < 2; ++half) {
      const __m256 dw = load_f16(header + (b % 2) * 32 + half * 16);
      UNROLL for (int m = 0; m < M; ++m) {
        const __m256 scale = _mm256_mul_ps(dw, _mm256_set1_ps(d[b * M + m]));
        acc[m][half] = _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(isum[m][half]), acc[m][half]);
      }
    }
    if (part.rows <= kStreamRows) prefetch<format.block_bytes>(from);
    from += format.block_bytes;
  }
  UNROLL for (int m = 0; m < M; ++m) finish(part, panel, row + m, acc[m]);
}

// Where one half of a panel's group and the rows' blocks of it stand.
struct Group {
  const uint8_t* header;
  int half;
  const int8_t* q;
  const float* d;
  const int32_t* terms;
};

// One block of 256 whose sub-blocks have a scale and a minimum.
template <PanelKind kind, int M>
static inline __attribute__((always_inline)) void group_minima(const Group& g, __m256 (&acc)[M][2]) {
  constexpr PanelFormat format = kPanelFormats[static_cast<int>(kind)];
  const uint8_t* block = g.header + format.header_bytes + g.half * 32;
  const uint8_t* scales = g.header + kPanelScales + g.half * kLanes;
  const uint8_t* minima = g.header + kPanelMins + g.half * kLanes;
  __m256 a[M], low[M];
  UNROLL for (int m = 0; m < M; ++m) a[m] = low[m] = _mm256_setzero_ps();
  for (int64_t b = 0; b < 8; ++b, block += format.block_bytes) {
    __m256i isum[M];
    UNROLL for (int m = 0; m < M; ++m) isum[m] = _mm256_setzero_si256();
    multiply_block<kind, 0, 8, M>(block, g.q + b * M * kPanelBlock, isum);
    const __m256 scale = load_u8(scales + b * 16), least = load_u8(minima + b * 16);
    UNROLL for (int m = 0; m < M; ++m) {
      const __m256 scaled = _mm256_mul_ps(scale, _mm256_cvtepi32_ps(isum[m]));
      a[m] = _mm256_fmadd_ps(scaled, _mm256_set1_ps(g.d[b * M + m]), a[m]);
      low[m] = _mm256_fmadd_ps(least, _mm256_set1_ps(float_at(g.terms + b * M + m)), low[m]);
    }
  }
  const __m256 dw = load_f16(g.header + g.half * 16), dmin = load_f16(g.header + 32 + g.half * 16);
  UNROLL for (int m = 0; m < M; ++m) {
    acc[m][g.half] = _mm256_fmadd_ps(dw, a[m], acc[m][g.half]);
    acc[m][g.half] = _mm256_fnmadd_ps(dmin, low[m], acc[m][g.half]);
  }
}

// One block of 256 with a signed scale for every 16.
template <int M>
static inline __attribute__((always_inline)) void group_halves(const Group& g, __m256 (&acc)[M][2]) {
  constexpr PanelKind kind = PanelKind::kQ6_K;
  constexpr PanelFormat format = kPanelFormats[static_cast<int>(kind)];
  const uint8_t* block = g.header + format.header_bytes + g.half * 32;
  const uint8_t* scales = g.header + kPanelScales + g.half * kLanes;
  __m256 a[M];
  UNROLL for (int m = 0; m < M; ++m) a[m] = _mm256_setzero_ps();
  for (int64_t b = 0; b < 8; ++b, block += format.block_bytes) {
    __m256i low[M], high[M];
    UNROLL for (int m = 0; m < M; ++m) {
      low[m] = _mm256_set1_epi32(g.terms[2 * b * M + m]);
      high[m] = _mm256_set1_epi32(g.terms[(2 * b + 1) * M + m]);
    }
    multiply_block<kind, 0, 4, M>(block, g.q + b * M * kPanelBlock, low);
    multiply_block<kind, 4, 8, M>(block, g.q + b * M * kPanelBlock, high);
    const __m256 scale0 = load_i8(scales + b * 32), scale1 = load_i8(scales + b * 32 + 16);
    UNROLL for (int m = 0; m < M; ++m) {
      // Whole numbers below 2^24: nothing is rounded.
      __m256 scaled = _mm256_mul_ps(scale0, _mm256_cvtepi32_ps(low[m]));
      scaled = _mm256_fmadd_ps(scale1, _mm256_cvtepi32_ps(high[m]), scaled);
      a[m] = _mm256_fmadd_ps(scaled, _mm256_set1_ps(g.d[b * M + m]), a[m]);
    }
  }
  const __m256 dw = load_f16(g.header + g.half * 16);
  UNROLL for (int m = 0; m < M; ++m) acc[m][g.half] = _mm256_fmadd_ps(dw, a[m], acc[m][g.half]);
}

template <PanelKind kind, int M>
static void tile_large(const PanelPart& part, int64_t panel, int64_t row) {
  constexpr PanelFormat format = kPanelFormats[static_cast<int>(kind)];
  Group g{};
  g.header = part.panels + panel * part.panel_bytes;
  g.q = part.x.q + row * part.blocks * kPanelBlock;
  g.d = part.x.d + row * part.blocks;
  g.terms = part.x.terms + row * part.blocks * format.terms;
  __m256 acc[M][2];
  UNROLL for (int m = 0; m < M; ++m) acc[m][0] = acc[m][1] = _mm256_setzero_ps();
  for (int64_t b = 0; b < part.blocks; b += 8) {
    if (part.rows <= kStreamRows) prefetch<format.header_bytes + 8 * format.block_bytes>(g.header);
    UNROLL for (int half = 0; half < 2; ++half) {
      g.half = half;
      if constexpr (kind == PanelKind::kQ6_K) {
        group_halves<M>(g, acc);
      } else {
        group_minima<kind, M>(g, acc);
      }
    }
    g.header += format.header_bytes + 8 * format.block_bytes;
    g.q += 8 * M * kPanelBlock;
    g.d += 8 * M;
    g.terms += 8 * M * format.terms;
  }
  UNROLL for (int m = 0; m < M; ++m) finish(part, panel, row + m, acc[m]);
}

template <PanelKind kind, int M>
static void tile(const PanelPart& part, int64_t panel, int64_t row) {
  if constexpr (kPanelFormats[static_cast<int>(kind)].blocks == 2) {
    tile_small<kind, M>(part, panel, row);
  } else {
    tile_large<kind, M>(part, panel, row);
  }
}

template <PanelKind kind>
static void tile_of(int64_t rows, const PanelPart& part, int64_t panel, int64_t row) {
  switch (rows) {
    case 1:
      return tile<kind, 1>(part, panel, row);
    case 2:
      return tile<kind, 2>(part, panel, row);
    case 3:
      return tile<kind, 3>(part, panel, row);
    case 4:
      return tile<kind, 4>(part, panel, row);
  }
}

// Panel after panel while the tile's rows are in the level-1 cache.
template <PanelKind kind>
static void multiply_rows(const PanelPart& part) {
  for (int64_t row = 0; row < part.rows; row += part.x.tile_rows) {
    const int64_t left = part.rows - row;
    for (int64_t panel = part.panel_begin; panel < part.panel_end; ++panel) {
      tile_of<kind>(left < part.x.tile_rows ? left : part.x.tile_rows, part, panel, row);
    }
  }
}

// Equal tiles of at most as many rows as there are registers for.
static int64_t tile_rows(PanelKind, int64_t rows) {
  const int64_t tiles = (rows + kMostRows - 1) / kMostRows;
  return tiles > 0 ? (rows + tiles - 1) / tiles : 1;
}

static void multiply(const PanelPart& part) {
  switch (part.kind) {
    case PanelKind::kQ8_0:
      return multiply_rows<PanelKind::kQ8_0>(part);
    case PanelKind::kQ4_0:
      return multiply_rows<PanelKind::kQ4_0>(part);
    case PanelKind::kQ4_K:
      return multiply_rows<PanelKind::kQ4_K>(part);
    case PanelKind::kQ5_K:
      return multiply_rows<PanelKind::kQ5_K>(part);
    case PanelKind::kQ6_K:
      return multiply_rows<PanelKind::kQ6_K>(part);
  }
}

// ---- rows of x ------------------------------------------------------------------------------------------------------

// Writes what the kind wants from the sums of the two halves of a block.
static inline void write_terms(PanelKind kind, int32_t low, int32_t high, float d, int64_t rows, int32_t* terms) {
  if (kind == PanelKind::kQ6_K) {
    terms[0] = -32 * low;
    terms[rows] = -32 * high;
  } else if (kind == PanelKind::kQ8_0 || kind == PanelKind::kQ4_0) {
    terms[0] = (kind == PanelKind::kQ8_0 ? -128 : -8) * (low + high);
  } else {
    const float sum = d * static_cast<float>(low + high);
    __builtin_memcpy(terms, &sum, 4);
  }
}

static inline int32_t largest(__m256i a) {
  __m128i b = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  b = _mm_max_epi32(b, _mm_shuffle_epi32(b, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(b, _mm_shuffle_epi32(b, 0xb1)));
}

static inline int32_t sum(__m256i a) {
  __m128i b = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  b = _mm_add_epi32(b, _mm_shuffle_epi32(b, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(b, _mm_shuffle_epi32(b, 0xb1)));
}

// 16 floats, in [-127, 127] after the product, as bytes; returns their sum.
static inline int32_t quantize16(__m256 low, __m256 high, __m256 inverse, int8_t* to) {
  const __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(low, inverse));
  const __m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(high, inverse));
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                   _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
  return sum(_mm256_add_epi32(a, b));
}

static void quantize(PanelKind kind, const float* x, int64_t blocks, int64_t rows, int8_t* q, float* d,
                     int32_t* terms) {
  const int64_t terms_step = kind == PanelKind::kQ6_K ? 2 * rows : rows;
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  for (int64_t b = 0; b < blocks; ++b, x += kPanelBlock, q += rows * kPanelBlock, d += rows, terms += terms_step) {
    __m256 v[4];
    // The order of the bits is that of the magnitudes, infinity and NaN above all.
    __m256i most_of = _mm256_setzero_si256();
    UNROLL for (int i = 0; i < 4; ++i) {
      v[i] = _mm256_loadu_ps(x + i * kLanes);
      most_of = _mm256_max_epi32(most_of, _mm256_and_si256(_mm256_castps_si256(v[i]), magnitude));
    }
    const int32_t most_bits = largest(most_of);
    const bool finite = most_bits < 0x7f800000;
    float most;
    __builtin_memcpy(&most, &most_bits, 4);
    const float scale = most / 127.0f;
    if (!finite || scale < 0x1p-126f) {
      *d = finite ? 0.0f : __builtin_nanf("");
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(q), _mm256_setzero_si256());
      write_terms(kind, 0, 0, *d, rows, terms);
      continue;
    }
    *d = scale;
    const __m256 inverse = _mm256_set1_ps(127.0f / most);
    const int32_t low = quantize16(v[0], v[1], inverse, q);
    const int32_t high = quantize16(v[2], v[3], inverse, q + 16);
    write_terms(kind, low, high, scale, rows, terms);
  }
}

}  // namespace

extern const PanelTable kAvx2Panels = {
    .tile_rows = tile_rows, .quantize = quantize, .multiply = multiply, .scratch_bytes_per_block = 0};

}  // namespace millrace::kernels

#endif
