// Tiles of products with panels: some rows of x and one panel, whose sums stay in registers. Every vector width and
// every way to multiply bytes includes this file: the arithmetic of panel_table.h is implemented here once.
// Included after panel_vec_<isa>.inl and panel_dot_<way>.inl, which define the vector operations and
//   kMostRows, kMostRowsLarge   of a tile: of Q8_0 and Q4_0, and of the types with blocks of 256
//   kTallestTile                of Q8_0 and Q4_0 that multiply_rows may meet
//   kSignedQ8_0                 whether multiply_block takes Q8_0 as signed, so that nothing is to be taken off
//   multiply_block              the integer products of a block

static inline bool has_large_blocks(PanelKind kind) { return kind != PanelKind::kQ8_0 && kind != PanelKind::kQ4_0; }

static inline float float_at(const int32_t* p) {
  float value = 0;
  __builtin_memcpy(&value, p, 4);
  return value;
}

// Asks for the bytes that lie `ahead` of a block. Into the second-level cache: it can have more misses in flight than
// the first. Only the first rows that meet a panel find it in memory.
template <int64_t bytes>
static inline void prefetch(const uint8_t* block, int64_t ahead) {
  UNROLL for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(block + ahead + i, 0, 2);
}

template <int M, int H>
static inline __attribute__((always_inline)) void start(const int32_t* terms, Ints (&isum)[M][H]) {
  UNROLL for (int m = 0; m < M; ++m) { UNROLL for (int h = 0; h < H; ++h) isum[m][h] = set1_ints(terms[m]); }
}
template <int M, int H>
static inline __attribute__((always_inline)) void start(Ints (&isum)[M][H]) {
  UNROLL for (int m = 0; m < M; ++m) { UNROLL for (int h = 0; h < H; ++h) isum[m][h] = zero_ints(); }
}

// Sums of one row and vector `v` of a panel to y.
static inline void finish(const PanelPart& part, int64_t panel, int v, int64_t row, Floats acc) {
  const int64_t first = panel * kPanelRows + v * kLanes;
  const int64_t left = part.columns - first;
  const int64_t count = left < 0 ? 0 : left < kLanes ? left : kLanes;
  float* y = part.y + row * part.y_stride + first;
  if (part.bias != nullptr) acc = add(acc, load_partial(part.bias + first, count));
  if (part.accumulate) acc = add(acc, load_partial(y, count));
  store_partial(y, acc, count);
}

// Where a tile begins.
struct TileStart {
  int64_t panel;
  int64_t row;
  bool first;  // of the rows that meet these panels
};

template <PanelKind kind, int M>
static void tile_small(const PanelPart& part, TileStart at) {
  constexpr PanelFormat format = kPanelFormats[static_cast<int>(kind)];
  constexpr int H = kVectors;
  const uint8_t* from = part.panels + at.panel * part.panel_bytes;
  const uint8_t* header = from;
  const int8_t* x = part.x.q + at.row * part.blocks * kPanelBlock;
  const float* d = part.x.d + at.row * part.blocks;
  const int32_t* terms = part.x.terms + at.row * part.blocks;
  Floats acc[M][H];
  UNROLL for (int m = 0; m < M; ++m) { UNROLL for (int h = 0; h < H; ++h) acc[m][h] = zero(); }
  for (int64_t b = 0; b < part.blocks; ++b, x += M * kPanelBlock, d += M, terms += M) {
    if (b % 2 == 0) {
      header = from;
      from += format.header_bytes;
    }
    if (at.first) {
      if (b % 2 == 0) prefetch<format.header_bytes>(header, part.prefetch_bytes);
      prefetch<format.block_bytes>(from, part.prefetch_bytes);
    }
    Ints isum[M][H];
    if constexpr (kind == PanelKind::kQ8_0 && kSignedQ8_0) {
      start(isum);
    } else {
      start(terms, isum);
    }
    multiply_block<kind, 0, 8>(from, x, isum);
    UNROLL for (int h = 0; h < H; ++h) {
      const Floats dw = load_f16(header + (b % 2) * 32 + h * 2 * kLanes);
      UNROLL for (int m = 0; m < M; ++m) { acc[m][h] = fma(mul(dw, set1(d[m])), to_floats(isum[m][h]), acc[m][h]); }
    }
    from += format.block_bytes;
  }
  UNROLL for (int h = 0; h < H; ++h) {
    UNROLL for (int m = 0; m < M; ++m) finish(part, at.panel, h, at.row + m, acc[m][h]);
  }
}

// One vector of a panel's group of eight blocks, and the rows' blocks of it.
struct Group {
  const uint8_t* header;
  int vector;
  bool prefetches;  // whether to fetch what lies `prefetch_bytes` ahead
  int64_t prefetch_bytes;
  const int8_t* q;
  const float* d;
  const int32_t* terms;
};

// One block of 256 whose sub-blocks have a scale and a minimum.
template <PanelKind kind, int M>
static inline __attribute__((always_inline)) void group_minima(const Group& g, Floats (&acc)[M]) {
  constexpr PanelFormat format = kPanelFormats[static_cast<int>(kind)];
  const uint8_t* block = g.header + format.header_bytes + g.vector * 4 * kLanes;
  const uint8_t* scales = g.header + kPanelScales + g.vector * kLanes;
  const uint8_t* minima = g.header + kPanelMins + g.vector * kLanes;
  if (g.prefetches) prefetch<format.header_bytes>(g.header, g.prefetch_bytes);
  Floats a[M], low[M];
  UNROLL for (int m = 0; m < M; ++m) a[m] = low[m] = zero();
  for (int64_t b = 0; b < 8; ++b, block += format.block_bytes) {
    if (g.prefetches) prefetch<format.block_bytes>(block, g.prefetch_bytes);
    Ints isum[M][1];
    start(isum);
    multiply_block<kind, 0, 8>(block, g.q + b * M * kPanelBlock, isum);
    const Floats scale = load_u8(scales + b * 16), least = load_u8(minima + b * 16);
    UNROLL for (int m = 0; m < M; ++m) {
      a[m] = fma(mul(scale, to_floats(isum[m][0])), set1(g.d[b * M + m]), a[m]);
      low[m] = fma(least, set1(float_at(g.terms + b * M + m)), low[m]);
    }
  }
  const Floats dw = load_f16(g.header + g.vector * 2 * kLanes), dmin = load_f16(g.header + 32 + g.vector * 2 * kLanes);
  UNROLL for (int m = 0; m < M; ++m) {
    acc[m] = fma(dw, a[m], acc[m]);
    acc[m] = fnma(dmin, low[m], acc[m]);
  }
}

// One block of 256 with a signed scale for every 16.
template <int M>
static inline __attribute__((always_inline)) void group_halves(const Group& g, Floats (&acc)[M]) {
  constexpr PanelKind kind = PanelKind::kQ6_K;
  constexpr PanelFormat format = kPanelFormats[static_cast<int>(kind)];
  const uint8_t* block = g.header + format.header_bytes + g.vector * 4 * kLanes;
  const uint8_t* scales = g.header + kPanelScales + g.vector * kLanes;
  if (g.prefetches) prefetch<format.header_bytes>(g.header, g.prefetch_bytes);
  Floats a[M];
  UNROLL for (int m = 0; m < M; ++m) a[m] = zero();
  for (int64_t b = 0; b < 8; ++b, block += format.block_bytes) {
    if (g.prefetches) prefetch<format.block_bytes>(block, g.prefetch_bytes);
    Ints low[M][1], high[M][1];
    start(g.terms + 2 * b * M, low);
    start(g.terms + (2 * b + 1) * M, high);
    multiply_block<kind, 0, 4>(block, g.q + b * M * kPanelBlock, low);
    multiply_block<kind, 4, 8>(block, g.q + b * M * kPanelBlock, high);
    const Floats scale0 = load_i8(scales + b * 32), scale1 = load_i8(scales + b * 32 + 16);
    UNROLL for (int m = 0; m < M; ++m) {
      // Whole numbers below 2^24: nothing is rounded.
      const Floats scaled = fma(scale1, to_floats(high[m][0]), mul(scale0, to_floats(low[m][0])));
      a[m] = fma(scaled, set1(g.d[b * M + m]), a[m]);
    }
  }
  const Floats dw = load_f16(g.header + g.vector * 2 * kLanes);
  UNROLL for (int m = 0; m < M; ++m) acc[m] = fma(dw, a[m], acc[m]);
}

template <PanelKind kind, int M>
static void tile_large(const PanelPart& part, TileStart at) {
  constexpr PanelFormat format = kPanelFormats[static_cast<int>(kind)];
  constexpr int64_t kGroupBytes = format.header_bytes + 8 * format.block_bytes;
  Group g{};
  g.header = part.panels + at.panel * part.panel_bytes;
  g.prefetch_bytes = part.prefetch_bytes;
  g.q = part.x.q + at.row * part.blocks * kPanelBlock;
  g.d = part.x.d + at.row * part.blocks;
  g.terms = part.x.terms + at.row * part.blocks * format.terms;
  Floats acc[kVectors][M];
  UNROLL for (int v = 0; v < kVectors; ++v) { UNROLL for (int m = 0; m < M; ++m) acc[v][m] = zero(); }
  for (int64_t b = 0; b < part.blocks; b += 8) {
    UNROLL for (int v = 0; v < kVectors; ++v) {
      g.vector = v;
      g.prefetches = at.first && v == 0;
      if constexpr (kind == PanelKind::kQ6_K) {
        group_halves<M>(g, acc[v]);
      } else {
        group_minima<kind, M>(g, acc[v]);
      }
    }
    g.header += kGroupBytes;
    g.q += 8 * M * kPanelBlock;
    g.d += 8 * M;
    g.terms += 8 * M * format.terms;
  }
  UNROLL for (int v = 0; v < kVectors; ++v) {
    UNROLL for (int m = 0; m < M; ++m) finish(part, at.panel, v, at.row + m, acc[v][m]);
  }
}

// A tile of `rows` rows, M at most.
template <PanelKind kind, int M>
static void tile_of(int64_t rows, const PanelPart& part, TileStart at) {
  if constexpr (M > 1) {
    if (rows < M) return tile_of<kind, M - 1>(rows, part, at);
  }
  if constexpr (kPanelFormats[static_cast<int>(kind)].blocks == 2) {
    tile_small<kind, M>(part, at);
  } else {
    tile_large<kind, M>(part, at);
  }
}

// Tiles of x from row `begin` on, panel after panel while the tile's rows are in the level-1 cache.
template <PanelKind kind>
static void multiply_rows(const PanelPart& part, int64_t begin) {
  constexpr bool kLarge = kPanelFormats[static_cast<int>(kind)].blocks != 2;
  for (int64_t row = begin; row < part.rows; row += part.x.tile_rows) {
    const int64_t left = part.rows - row;
    const int64_t rows = left < part.x.tile_rows ? left : part.x.tile_rows;
    TileStart at{part.panel_begin, row, row == begin};
    for (; at.panel < part.panel_end; ++at.panel) {
      tile_of<kind, kLarge ? kMostRowsLarge : kTallestTile>(rows, part, at);
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

// Equal tiles of at most as many rows as there are registers for.
static int64_t vector_tile_rows(PanelKind kind, int64_t rows) {
  const int64_t most = has_large_blocks(kind) ? kMostRowsLarge : kMostRows;
  const int64_t tiles = (rows + most - 1) / most;
  return tiles > 0 ? (rows + tiles - 1) / tiles : 1;
}
