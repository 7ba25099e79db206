// Products with panels by VPDPBUSD: weights are the unsigned operand (Q8_0: q + 128), and what their offset adds to a
// block's sum is taken off by starting from the row's term. One tile is one panel and M rows; each vector of 64 bytes
// of weights is loaded once and meets four elements of every row. Included by panels_avx512.cc and panels_amx.cc after
// the intrinsics, inside an unnamed namespace; needs AVX-512 F, BW, VL, DQ and VNNI.

constexpr int kMostRows = 12;      // of a tile of Q8_0 and Q4_0: 12 integer and 12 float sums, and what they meet
constexpr int kMostRowsLarge = 8;  // of the types with blocks of 256, which need up to three sums a row

static inline __m512i load_bytes(const void* p) { return _mm512_load_si512(p); }
static inline __m512 load_f16(const uint8_t* p) {
  return _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(p)));
}
// 16 bytes as floats.
static inline __m512 load_u8(const uint8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(p))));
}
static inline __m512 load_i8(const uint8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(p))));
}
typedef int32_t Four __attribute__((may_alias));

// sum + the products of w's bytes with the four at x, in each lane. Written as an instruction because g++ 12 does not
// know that this one can repeat its operand from memory, and a second instruction for each would be the bottleneck.
static inline __attribute__((always_inline)) __m512i dot(__m512i sum, __m512i w, const int8_t* x) {
  __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(w), "m"(*reinterpret_cast<const Four*>(x)));
  return sum;
}

// The weights q[j] of a block as unsigned bytes.
template <PanelKind kind>
static inline __attribute__((always_inline)) __m512i weights(const uint8_t* block, int j) {
  if constexpr (kind == PanelKind::kQ8_0) {
    return _mm512_xor_si512(load_bytes(block + j * 64), _mm512_set1_epi8(-128));
  } else {
    __m512i both = load_bytes(block + (j % 4) * 64);
    if (j >= 4) both = _mm512_srli_epi16(both, 4);
    __m512i q = _mm512_and_si512(both, _mm512_set1_epi8(15));
    if constexpr (kind == PanelKind::kQ5_K) {
      const __m512i plane = load_bytes(block + 256);
      const __m512i bit = j < 4 ? _mm512_slli_epi16(plane, 4 - j) : _mm512_srli_epi16(plane, j - 4);
      q = _mm512_or_si512(q, _mm512_and_si512(bit, _mm512_set1_epi8(16)));
    }
    if constexpr (kind == PanelKind::kQ6_K) {
      const __m512i plane = load_bytes(block + 256 + (j / 4) * 64);
      const int shift = 2 * (j % 4);
      const __m512i bits = shift <= 4 ? _mm512_slli_epi16(plane, 4 - shift) : _mm512_srli_epi16(plane, shift - 4);
      q = _mm512_or_si512(q, _mm512_and_si512(bits, _mm512_set1_epi8(48)));
    }
    return q;
  }
}

// isum[m] += the products of q[first .. last) with row m's elements. x points at the block in the first row.
template <PanelKind kind, int M>
static inline __attribute__((always_inline)) void multiply_block(const uint8_t* block, int first, int last,
                                                                 const int8_t* x, __m512i (&isum)[M]) {
  UNROLL for (int j = first; j < last; ++j) {
    const __m512i w = weights<kind>(block, j);
    UNROLL for (int m = 0; m < M; ++m) isum[m] = dot(isum[m], w, x + m * kPanelBlock + 4 * j);
  }
}

template <int M>
static inline void start(const int32_t* terms, __m512i (&isum)[M]) {
  UNROLL for (int m = 0; m < M; ++m) isum[m] = _mm512_set1_epi32(terms[m]);
}

static inline float float_at(const int32_t* p) {
  float value;
  __builtin_memcpy(&value, p, 4);
  return value;
}

// What comes after the page in work is asked for early, which few rows would wait for: across the ends of pages, where
// the processor's own prefetcher stops. Into the second-level cache: it has room for more misses at once than the
// first.
constexpr int64_t kAhead = 8192;
template <int64_t bytes>
static inline void prefetch(const uint8_t* block) {
  UNROLL for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(block + kAhead + i, 0, 2);
}

// Sums of 16 columns of one row to y.
static inline void finish(const PanelPart& part, int64_t panel, int64_t row, __m512 acc) {
  const int64_t first = panel * kPanelRows;
  const int64_t count = part.columns - first < kPanelRows ? part.columns - first : kPanelRows;
  const __mmask16 mask = static_cast<__mmask16>((1u << count) - 1);
  float* y = part.y + row * part.y_stride + first;
  if (part.bias != nullptr) acc = _mm512_add_ps(acc, _mm512_maskz_loadu_ps(mask, part.bias + first));
  if (part.accumulate) acc = _mm512_add_ps(acc, _mm512_maskz_loadu_ps(mask, y));
  _mm512_mask_storeu_ps(y, mask, acc);
}

template <PanelKind kind, int M>
static void tile_small(const PanelPart& part, int64_t panel, int64_t row) {
  constexpr PanelFormat format = kPanelFormats[static_cast<int>(kind)];
  const uint8_t* from = part.panels + panel * part.panel_bytes;
  const uint8_t* header = from;
  const int8_t* x = part.x.q + row * part.blocks * kPanelBlock;
  const float* d = part.x.d + row * part.blocks;
  const int32_t* terms = part.x.terms + row * part.blocks;
  __m512 acc[M];
  UNROLL for (int m = 0; m < M; ++m) acc[m] = _mm512_setzero_ps();
  for (int64_t b = 0; b < part.blocks; ++b) {
    if (b % 2 == 0) {
      header = from;
      prefetch<format.header_bytes>(header);
      from += format.header_bytes;
    }
    __m512i isum[M];
    start<M>(terms + b * M, isum);
    multiply_block<kind, M>(from, 0, 8, x + b * M * kPanelBlock, isum);
    prefetch<format.block_bytes>(from);
    const __m512 dw = load_f16(header + (b % 2) * 32);
    UNROLL for (int m = 0; m < M; ++m) {
      const __m512 scale = _mm512_mul_ps(dw, _mm512_set1_ps(d[b * M + m]));
      acc[m] = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(isum[m]), acc[m]);
    }
    from += format.block_bytes;
  }
  UNROLL for (int m = 0; m < M; ++m) finish(part, panel, row + m, acc[m]);
}

// One block of 256 whose sub-blocks have a scale and a minimum.
template <PanelKind kind, int M>
static inline __attribute__((always_inline)) void group_minima(const uint8_t* header, const int8_t* q, const float* d,
                                                               const int32_t* terms, __m512 (&acc)[M]) {
  constexpr PanelFormat format = kPanelFormats[static_cast<int>(kind)];
  const uint8_t* block = header + format.header_bytes;
  prefetch<format.header_bytes>(header);
  __m512 a[M], low[M];
  UNROLL for (int m = 0; m < M; ++m) a[m] = low[m] = _mm512_setzero_ps();
  for (int64_t b = 0; b < 8; ++b, block += format.block_bytes) {
    __m512i isum[M];
    UNROLL for (int m = 0; m < M; ++m) isum[m] = _mm512_setzero_si512();
    multiply_block<kind, M>(block, 0, 8, q + b * M * kPanelBlock, isum);
    prefetch<format.block_bytes>(block);
    const __m512 scale = load_u8(header + kPanelScales + b * 16), least = load_u8(header + kPanelMins + b * 16);
    UNROLL for (int m = 0; m < M; ++m) {
      const __m512 scaled = _mm512_mul_ps(scale, _mm512_cvtepi32_ps(isum[m]));
      a[m] = _mm512_fmadd_ps(scaled, _mm512_set1_ps(d[b * M + m]), a[m]);
      low[m] = _mm512_fmadd_ps(least, _mm512_set1_ps(float_at(terms + b * M + m)), low[m]);
    }
  }
  const __m512 dw = load_f16(header), dmin = load_f16(header + 32);
  UNROLL for (int m = 0; m < M; ++m) {
    acc[m] = _mm512_fmadd_ps(dw, a[m], acc[m]);
    acc[m] = _mm512_fnmadd_ps(dmin, low[m], acc[m]);
  }
}

// One block of 256 with a signed scale for every 16.
template <int M>
static inline __attribute__((always_inline)) void group_halves(const uint8_t* header, const int8_t* q, const float* d,
                                                               const int32_t* terms, __m512 (&acc)[M]) {
  constexpr PanelKind kind = PanelKind::kQ6_K;
  constexpr PanelFormat format = kPanelFormats[static_cast<int>(kind)];
  const uint8_t* block = header + format.header_bytes;
  prefetch<format.header_bytes>(header);
  __m512 a[M];
  UNROLL for (int m = 0; m < M; ++m) a[m] = _mm512_setzero_ps();
  for (int64_t b = 0; b < 8; ++b, block += format.block_bytes) {
    __m512i low[M], high[M];
    start<M>(terms + 2 * b * M, low);
    start<M>(terms + (2 * b + 1) * M, high);
    multiply_block<kind, M>(block, 0, 4, q + b * M * kPanelBlock, low);
    multiply_block<kind, M>(block, 4, 8, q + b * M * kPanelBlock, high);
    prefetch<format.block_bytes>(block);
    const __m512 scale0 = load_i8(header + kPanelScales + b * 32),
                 scale1 = load_i8(header + kPanelScales + b * 32 + 16);
    UNROLL for (int m = 0; m < M; ++m) {
      // Whole numbers below 2^24: nothing is rounded.
      __m512 scaled = _mm512_mul_ps(scale0, _mm512_cvtepi32_ps(low[m]));
      scaled = _mm512_fmadd_ps(scale1, _mm512_cvtepi32_ps(high[m]), scaled);
      a[m] = _mm512_fmadd_ps(scaled, _mm512_set1_ps(d[b * M + m]), a[m]);
    }
  }
  const __m512 dw = load_f16(header);
  UNROLL for (int m = 0; m < M; ++m) acc[m] = _mm512_fmadd_ps(dw, a[m], acc[m]);
}

template <PanelKind kind, int M>
static void tile_large(const PanelPart& part, int64_t panel, int64_t row) {
  constexpr PanelFormat format = kPanelFormats[static_cast<int>(kind)];
  const uint8_t* group = part.panels + panel * part.panel_bytes;
  const int8_t* q = part.x.q + row * part.blocks * kPanelBlock;
  const float* d = part.x.d + row * part.blocks;
  const int32_t* terms = part.x.terms + row * part.blocks * format.terms;
  __m512 acc[M];
  UNROLL for (int m = 0; m < M; ++m) acc[m] = _mm512_setzero_ps();
  for (int64_t b = 0; b < part.blocks; b += 8) {
    if constexpr (kind == PanelKind::kQ6_K) {
      group_halves<M>(group, q, d, terms, acc);
    } else {
      group_minima<kind, M>(group, q, d, terms, acc);
    }
    group += format.header_bytes + 8 * format.block_bytes;
    q += 8 * M * kPanelBlock;
    d += 8 * M;
    terms += 8 * M * format.terms;
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
    case 5:
      return tile<kind, 5>(part, panel, row);
    case 6:
      return tile<kind, 6>(part, panel, row);
    case 7:
      return tile<kind, 7>(part, panel, row);
    case 8:
      return tile<kind, 8>(part, panel, row);
  }
  if constexpr (kPanelFormats[static_cast<int>(kind)].blocks == 2) {
    switch (rows) {
      case 9:
        return tile<kind, 9>(part, panel, row);
      case 10:
        return tile<kind, 10>(part, panel, row);
      case 11:
        return tile<kind, 11>(part, panel, row);
      case 12:
        return tile<kind, 12>(part, panel, row);
      case 13:
        return tile<kind, 13>(part, panel, row);
      case 14:
        return tile<kind, 14>(part, panel, row);
      case 15:
        return tile<kind, 15>(part, panel, row);
      case 16:
        return tile<kind, 16>(part, panel, row);
    }
  }
}

// Tiles of x from row `begin` on, panel after panel while the tile's rows are in the level-1 cache.
template <PanelKind kind>
static void multiply_rows(const PanelPart& part, int64_t begin) {
  for (int64_t row = begin; row < part.rows; row += part.x.tile_rows) {
    const int64_t left = part.rows - row;
    for (int64_t panel = part.panel_begin; panel < part.panel_end; ++panel) {
      tile_of<kind>(left < part.x.tile_rows ? left : part.x.tile_rows, part, panel, row);
    }
  }
}

static void multiply_by_vectors(const PanelPart& part, int64_t begin) {
  switch (part.kind) {
    case PanelKind::kQ8_0:
      return multiply_rows<PanelKind::kQ8_0>(part, begin);
    case PanelKind::kQ4_0:
      return multiply_rows<PanelKind::kQ4_0>(part, begin);
    case PanelKind::kQ4_K:
      return multiply_rows<PanelKind::kQ4_K>(part, begin);
    case PanelKind::kQ5_K:
      return multiply_rows<PanelKind::kQ5_K>(part, begin);
    case PanelKind::kQ6_K:
      return multiply_rows<PanelKind::kQ6_K>(part, begin);
  }
}

static inline bool has_large_blocks(PanelKind kind) { return kind != PanelKind::kQ8_0 && kind != PanelKind::kQ4_0; }

// Equal tiles of at most as many rows as there are registers for.
static int64_t vector_tile_rows(PanelKind kind, int64_t rows) {
  const int64_t most = has_large_blocks(kind) ? kMostRowsLarge : kMostRows;
  const int64_t tiles = (rows + most - 1) / most;
  return tiles > 0 ? (rows + tiles - 1) / tiles : 1;
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

static void quantize(PanelKind kind, const float* x, int64_t blocks, int64_t rows, int8_t* q, float* d,
                     int32_t* terms) {
  const int64_t terms_step = kind == PanelKind::kQ6_K ? 2 * rows : rows;
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  for (int64_t b = 0; b < blocks; ++b, x += kPanelBlock, q += rows * kPanelBlock, d += rows, terms += terms_step) {
    const __m512 low = _mm512_loadu_ps(x), high = _mm512_loadu_ps(x + 16);
    // The order of the bits is that of the magnitudes, infinity and NaN above all.
    const int32_t most_bits = _mm512_reduce_max_epi32(_mm512_max_epi32(
        _mm512_and_si512(_mm512_castps_si512(low), magnitude), _mm512_and_si512(_mm512_castps_si512(high), magnitude)));
    const bool finite = most_bits < 0x7f800000;
    float most;
    __builtin_memcpy(&most, &most_bits, 4);
    const float scale = most / 127.0f;
    const bool some = finite && scale >= 0x1p-126f;
    *d = finite ? (some ? scale : 0.0f) : __builtin_nanf("");
    const __m512 inverse = _mm512_set1_ps(some ? 127.0f / most : 0.0f);
    const __mmask16 keep = static_cast<__mmask16>(some ? 0xffff : 0);  // 0 times infinity is not 0
    const __m512i whole_low = _mm512_maskz_cvtps_epi32(keep, _mm512_mul_ps(low, inverse));
    const __m512i whole_high = _mm512_maskz_cvtps_epi32(keep, _mm512_mul_ps(high, inverse));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(q), _mm512_cvtepi32_epi8(whole_low));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(q + 16), _mm512_cvtepi32_epi8(whole_high));
    write_terms(kind, _mm512_reduce_add_epi32(whole_low), _mm512_reduce_add_epi32(whole_high), *d, rows, terms);
  }
}
