// linear for plain weights in panels (tiles.h): outer products. A vector holds columns of the result side by side, so
// that each element of y is one lane's chain over k and nothing is added across lanes.
//
// The order, whatever the tile: for each block of kLinearDepth of k one chain of multiply-adds from +0, k ascending;
// then the blocks' sums are added, ascending; then bias; then the old y.
// Included by kernels_<isa>.cc after linear_sums.inl.

template <WeightKind kind>
static inline int64_t line_bytes(int64_t width) {  // of one k, or one pair of them
  return width * (kind == WeightKind::kF16 ? 2 : 4);
}
template <WeightKind kind>
static inline int64_t weight_bytes(int64_t count) {
  return count * (kind == WeightKind::kF32 ? 4 : 2);
}
template <WeightKind kind>
static inline LV load_column(const char* p) {
  if constexpr (kind == WeightKind::kF16) return lv_load_f16(p);
  return lv_load(reinterpret_cast<const float*>(p));
}

template <WeightKind kind>
static inline const char* panel_at(const LinearPart& part, int64_t panel) {
  return part.weight + panel * 32 * weight_bytes<kind>((part.k + 31) / 32 * 32);
}

// ---- few rows: x as it lies, weights straight from the panel --------------------------------------------------------

// What is prefetched while a block is multiplied: what lies so far ahead of the weights that are read, or a run of
// bytes of its own, of which each k, or pair of them, takes a step.
struct PrefetchAhead {
  int64_t bytes;
  const char* next(const char* w) const { return w + bytes; }
};
struct PrefetchInSteps {
  const char* at;
  int64_t step;
  const char* next(const char*) { return (at += step) - step; }
};

template <WeightKind kind, int M, int V, typename Ahead>
static inline __attribute__((always_inline)) void few_block(const float* x, int64_t x_stride, const char* w,
                                                            int64_t line, int64_t count, Ahead ahead,
                                                            LV (&acc)[M][V]) {
  constexpr int64_t kBytes = kLanes * (kind == WeightKind::kF16 ? 2 : 4);
  if constexpr (kind == WeightKind::kBF16) {
    int64_t i = 0;
    for (; i + 2 <= count; i += 2, w += line) {
      const char* const next = ahead.next(w);
      UNROLL for (int64_t b = 0; b < V * kBytes; b += 64) __builtin_prefetch(next + b, 0, 2);
      LPairs pairs[V];
      UNROLL for (int v = 0; v < V; ++v) pairs[v] = lv_load_pairs(w + v * kBytes);
      UNROLL for (int m = 0; m < M; ++m) {
        const LV xv = lv_set1(x[m * x_stride + i]);
        UNROLL for (int v = 0; v < V; ++v) acc[m][v] = lv_fma(xv, lv_first(pairs[v]), acc[m][v]);
      }
      UNROLL for (int m = 0; m < M; ++m) {
        const LV xv = lv_set1(x[m * x_stride + i + 1]);
        UNROLL for (int v = 0; v < V; ++v) acc[m][v] = lv_fma(xv, lv_second(pairs[v]), acc[m][v]);
      }
    }
    if (i == count) return;
    UNROLL for (int m = 0; m < M; ++m) {
      const LV xv = lv_set1(x[m * x_stride + i]);
      UNROLL for (int v = 0; v < V; ++v) {
        acc[m][v] = lv_fma(xv, lv_first(lv_load_pairs(w + v * kBytes)), acc[m][v]);
      }
    }
  } else {
    for (int64_t i = 0; i < count; ++i, w += line) {
      const char* const next = ahead.next(w);
      UNROLL for (int64_t b = 0; b < V * kBytes; b += 64) __builtin_prefetch(next + b, 0, 2);
      LV wv[V];
      UNROLL for (int v = 0; v < V; ++v) wv[v] = load_column<kind>(w + v * kBytes);
      UNROLL for (int m = 0; m < M; ++m) {
        const LV xv = lv_set1(x[m * x_stride + i]);
        UNROLL for (int v = 0; v < V; ++v) acc[m][v] = lv_fma(xv, wv[v], acc[m][v]);
      }
    }
  }
}

template <WeightKind kind, int M, int V>
static void few_panel(const LinearPart& part, int64_t panel) {
  constexpr int64_t kColumns = V * kLanes;
  const int64_t width = panel_width(part, panel);
  const int64_t line = line_bytes<kind>(width);
  const char* w = panel_at<kind>(part, panel);
  for (int64_t k = 0; k < part.k || k == 0; k += kLinearDepth, w += weight_bytes<kind>(kLinearDepth * width)) {
    const int64_t count = part.k - k < kLinearDepth ? part.k - k : kLinearDepth;
    const int64_t prefetch_bytes = width > kColumns ? weight_bytes<kind>(kLinearDepth * width) : part.prefetch_bytes;
    for (int64_t column = 0; column < width && panel * 32 + column < part.n; column += kColumns) {
      LV acc[M][V];
      UNROLL for (int m = 0; m < M; ++m) { UNROLL for (int v = 0; v < V; ++v) acc[m][v] = lv_zero(); }
      few_block<kind, M, V>(part.x + k, part.x_stride, w + line_bytes<kind>(column), line, count,
                            PrefetchAhead{prefetch_bytes}, acc);
      close_block<M, V>({&part, 0, panel * 32 + column, part.scratch + M * column, k == 0, k + count == part.k}, acc);
    }
  }
}

// Where a tile of rows, a run of columns and a block of k meet.
struct FewTile {
  int64_t row, column;  // of y
  int64_t k, count;
  const char* w;
  int64_t line;
  float* sums;
  PrefetchInSteps ahead;
};

template <WeightKind kind, int V, int M = kFewTile>
static inline void few_tile(int64_t height, const LinearPart& part, const FewTile& t) {
  if constexpr (M > 1) {
    if (height < M) return few_tile<kind, V, M - 1>(height, part, t);
  }
  LV acc[M][V];
  UNROLL for (int m = 0; m < M; ++m) { UNROLL for (int v = 0; v < V; ++v) acc[m][v] = lv_zero(); }
  few_block<kind, M, V>(part.x + t.row * part.x_stride + t.k, part.x_stride, t.w, t.line, t.count, t.ahead, acc);
  close_block<M, V>({&part, t.row, t.column, t.sums, t.k == 0, t.k + t.count == part.k}, acc);
}

// More rows than the registers hold sums for: in tiles, one after the other with each block, which stays in the level-1
// cache. Meanwhile the weights of the next k come, a part of them with each tile.
template <WeightKind kind, int V>
static void few_panel_in_tiles(const LinearPart& part, int64_t panel) {
  constexpr int64_t kColumns = V * kLanes;
  const int64_t width = panel_width(part, panel), line = line_bytes<kind>(width);
  const int64_t block_bytes = weight_bytes<kind>(kLinearDepth * width), lines = block_bytes / line;
  const int64_t tiles = (part.rows + kFewTile - 1) / kFewTile, passes = (width + kColumns - 1) / kColumns * tiles;
  const int64_t step = (line + passes - 1) / passes;
  const char* w = panel_at<kind>(part, panel);
  for (int64_t k = 0; k < part.k || k == 0; k += kLinearDepth, w += block_bytes) {
    const int64_t count = part.k - k < kLinearDepth ? part.k - k : kLinearDepth;
    const char* next = w + block_bytes;
    for (int64_t column = 0; column < width && panel * 32 + column < part.n; column += kColumns) {
      for (int64_t tile = 0; tile < tiles; ++tile, next += step * lines) {
        const int64_t row = part.rows * tile / tiles, height = part.rows * (tile + 1) / tiles - row;
        float* sums = part.scratch + row * 32 + height * column;
        few_tile<kind, V>(height, part, {row, panel * 32 + column, k, count, w + line_bytes<kind>(column), line, sums,
                                         {next, step}});
      }
    }
  }
}

template <WeightKind kind>
static void few_panels_in_tiles(const LinearPart& part) {
  for (int64_t panel = part.panel_begin; panel < part.panel_end; ++panel) {
    if (panel_width(part, panel) >= kVectors * kLanes) {
      few_panel_in_tiles<kind, kVectors>(part, panel);
    } else {
      few_panel_in_tiles<kind, (kVectors + 1) / 2>(part, panel);
    }
  }
}

template <WeightKind kind, int M>
static void few_panels(const LinearPart& part) {
  for (int64_t panel = part.panel_begin; panel < part.panel_end; ++panel) {
    constexpr int kMost = M <= kWideRows ? 32 / kLanes : kVectors;
    if (panel_width(part, panel) >= kMost * kLanes) {
      few_panel<kind, M, kMost>(part, panel);
    } else {
      few_panel<kind, M, (kMost + 1) / 2>(part, panel);
    }
  }
}

template <WeightKind kind, int M = kFewTile>
static void linear_few(const LinearPart& part) {
  if constexpr (M == kFewTile && kFewRows > kFewTile) {
    if (part.rows > M) return few_panels_in_tiles<kind>(part);
  }
  if constexpr (M > 1) {
    if (part.rows < M) return linear_few<kind, M - 1>(part);
  }
  few_panels<kind, M>(part);
}

// ---- many rows: x packed in tiles, a block of a panel widened once -----------------------------------------------------

// A tile of M rows: for each k its M elements side by side.
static void pack_x(const float* x, int64_t x_stride, int64_t rows, int64_t k, int64_t tile_begin, int64_t tile_end,
                   void* packed) {
  for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
    const int64_t begin = tile_row(rows, tile), height = tile_row(rows, tile + 1) - begin;
    float* to = static_cast<float*>(packed) + begin * k;
    for (int64_t m = 0; m < height; ++m) {
      const float* from = x + (begin + m) * x_stride;
      for (int64_t i = 0; i < k; ++i) to[i * height + m] = from[i];
    }
  }
}

// `count` of k of a panel as f32: for each run of V vectors of columns, for each k, its columns.
template <WeightKind kind, int V>
static void widen_block(const char* w, int64_t width, int64_t count, float* to) {
  constexpr int64_t kColumns = V * kLanes;
  constexpr int64_t kBytes = kLanes * (kind == WeightKind::kF16 ? 2 : 4);
  const int64_t line = line_bytes<kind>(width);
  for (int64_t column = 0; column < width; column += kColumns, to += kLinearDepth * kColumns) {
    const char* from = w + line_bytes<kind>(column);
    if constexpr (kind == WeightKind::kBF16) {
      for (int64_t i = 0; i < count; i += 2, from += line) {  // the second of the last pair may be the zero after k
        UNROLL for (int v = 0; v < V; ++v) {
          const LPairs pairs = lv_load_pairs(from + v * kBytes);
          lv_store(to + i * kColumns + v * kLanes, lv_first(pairs));
          lv_store(to + (i + 1) * kColumns + v * kLanes, lv_second(pairs));
        }
      }
    } else {
      for (int64_t i = 0; i < count; ++i, from += line) {
        UNROLL for (int v = 0; v < V; ++v) {
          lv_store(to + i * kColumns + v * kLanes, load_column<kind>(from + v * kBytes));
        }
      }
    }
  }
}

// The weights of the next block come to the level-2 cache meanwhile: `ahead` moves by one line a k.
template <int M, int V>
static void many_tile(const float* x, const float* w, int64_t count, const char* ahead, const Target& target) {
  LV acc[M][V];
  UNROLL for (int m = 0; m < M; ++m) { UNROLL for (int v = 0; v < V; ++v) acc[m][v] = lv_zero(); }
  for (int64_t i = 0; i < count; ++i, x += M, w += V * kLanes, ahead += 64) {
    __builtin_prefetch(ahead, 0, 2);
    LV wv[V];
    UNROLL for (int v = 0; v < V; ++v) wv[v] = lv_load(w + v * kLanes);
    UNROLL for (int m = 0; m < M; ++m) {
      const LV xv = lv_set1(x[m]);
      UNROLL for (int v = 0; v < V; ++v) acc[m][v] = lv_fma(xv, wv[v], acc[m][v]);
    }
  }
  close_block<M, V>(target, acc);
}

template <int V, int M = kRowTile>
static inline void many_tile_of(int64_t height, const float* x, const float* w, int64_t count, const char* ahead,
                                const Target& target) {
  if constexpr (M > 1) {
    if (height < M) return many_tile_of<V, M - 1>(height, x, w, count, ahead, target);
  }
  many_tile<M, V>(x, w, count, ahead, target);
}

template <WeightKind kind, int V>
static void many_panel(const LinearPart& part, int64_t panel) {
  constexpr int64_t kColumns = V * kLanes;
  const int64_t width = panel_width(part, panel);
  const int64_t first_row = tile_row(part.rows, part.tile_begin);
  float* wide = part.scratch;
  float* all_sums = part.scratch + 32 * kLinearDepth;
  const char* w = panel_at<kind>(part, panel);
  const int64_t block_bytes = weight_bytes<kind>(kLinearDepth * width);
  for (int64_t k = 0; k < part.k || k == 0; k += kLinearDepth, w += block_bytes) {
    const int64_t count = part.k - k < kLinearDepth ? part.k - k : kLinearDepth;
    widen_block<kind, V>(w, width, count, wide);
    const char* ahead = w + block_bytes;
    for (int64_t column = 0; column < width && panel * 32 + column < part.n; column += kColumns) {
      for (int64_t tile = part.tile_begin; tile < part.tile_end; ++tile) {
        const int64_t row = tile_row(part.rows, tile), height = tile_row(part.rows, tile + 1) - row;
        float* sums = all_sums + (row - first_row) * 32 + column * height;
        many_tile_of<V>(height, static_cast<const float*>(part.packed_x) + row * part.k + k * height,
                        wide + column * kLinearDepth, count, ahead,
                        {&part, row, panel * 32 + column, sums, k == 0, k + count == part.k});
        ahead = w;  // asked for once; what is here already costs little
      }
    }
  }
}

template <WeightKind kind>
static void linear_many(const LinearPart& part) {
  for (int64_t panel = part.panel_begin; panel < part.panel_end; ++panel) {
    if (panel_width(part, panel) >= kVectors * kLanes) {
      many_panel<kind, kVectors>(part, panel);
    } else {
      many_panel<kind, (kVectors + 1) / 2>(part, panel);
    }
  }
}

template <WeightKind kind>
static constexpr LinearKernel linear_kernel() {
  return {
      .few_rows = kFewRows,
      .row_tile = kRowTile,
      .even_tiles = true,
      .element_bytes = 4,
      .depth = 1,
      .block_rows = kBlockRows,
      .block_panels = 1,
      .scratch_floats = 32 * (kLinearDepth + kBlockRows + kRowTile),
      .few = linear_few<kind>,
      .many = linear_many<kind>,
      .pack = pack_x,
  };
}

static constexpr LinearKernel kLinearF32 = linear_kernel<WeightKind::kF32>();
static constexpr LinearKernel kLinearF16 = linear_kernel<WeightKind::kF16>();
static constexpr LinearKernel kLinearBF16 = linear_kernel<WeightKind::kBF16>();

// ---- f32 of small weights: biases, norms, rows of an embedding ----------------------------------------------------------

template <WeightKind kind>
static inline V8 load_weights_partial(const char* p, int64_t n) {
  char padded[32] = {};
  __builtin_memcpy(padded, p, static_cast<uint64_t>(weight_bytes<kind>(n)));
  return load_weights<kind>(padded);
}

template <WeightKind kind>
static void widen_all(const char* from, int64_t count, float* to) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) store(to + i, load_weights<kind>(from + weight_bytes<kind>(i)));
  if (i < count) store_partial(to + i, load_weights_partial<kind>(from + weight_bytes<kind>(i), count - i), count - i);
}

static void widen(WeightKind kind, const void* from, int64_t count, float* to) {
  const char* bytes = static_cast<const char*>(from);
  switch (kind) {
    case WeightKind::kF32:
      return widen_all<WeightKind::kF32>(bytes, count, to);
    case WeightKind::kF16:
      return widen_all<WeightKind::kF16>(bytes, count, to);
    case WeightKind::kBF16:
      return widen_all<WeightKind::kBF16>(bytes, count, to);
  }
}
