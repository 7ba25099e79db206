// Many queries against one block in scratch: the sums of values. They lie in panels of kValueVectors vectors, each of
// which stays in the level-1 cache while the group's tiles of queries meet it. Included by kernels_<isa>.cc after
// attention_lanes.inl.

// Some rows of a group: what all of them see of the block, and whether any sees more.
struct ValueTile {
  int64_t row, count;  // in the group
  int64_t first, last;
  bool even;
};

static inline ValueTile value_tile(const Group& g, int64_t row, int64_t count) {
  ValueTile tile{row, count, g.first, g.last, true};
  if (g.even) return tile;
  for (int64_t m = row; m < row + count; ++m) {
    if (g.begin[m] > tile.first) tile.first = g.begin[m];
    if (g.end[m] < tile.last) tile.last = g.end[m];
  }
  for (int64_t m = row; m < row + count; ++m) {
    if (g.begin[m] < tile.first || g.end[m] > tile.last) tile.even = false;
  }
  if (tile.first >= tile.last) tile.even = false;
  return tile;
}

// Where sums of values go on: [row][stride]. A fresh one counts as 0, whatever is there.
struct ValueSums {
  float* acc;
  int64_t stride;
  bool fresh;
};

// acc = acc * correction + the sum of p[j] v[j] over ascending j in [begin, end), for M rows and N vectors of a panel.
template <int M, int N>
static inline void add_panel(const float* p, const float* values, int64_t begin, int64_t end, const float* correction,
                             const ValueSums& to) {
  V sums[M][N];
  if (to.fresh) {
    UNROLL for (int m = 0; m < M; ++m) { UNROLL for (int n = 0; n < N; ++n) sums[m][n] = zero(); }
  } else {
    UNROLL for (int m = 0; m < M; ++m) {
      const V factor = set1(correction[m]);
      UNROLL for (int n = 0; n < N; ++n) sums[m][n] = mul(load(to.acc + m * to.stride + n * kWidth), factor);
    }
  }
  p += begin * kGroup;
  values += begin * kValuePanel;
  for (int64_t j = begin; j < end; ++j, p += kGroup, values += kValuePanel) {
    V v[N];
    UNROLL for (int n = 0; n < N; ++n) v[n] = load(values + n * kWidth);
    UNROLL for (int m = 0; m < M; ++m) {
      const V weight = set1(p[m]);
      UNROLL for (int n = 0; n < N; ++n) sums[m][n] = fma(weight, v[n], sums[m][n]);
    }
  }
  UNROLL for (int m = 0; m < M; ++m) {
    UNROLL for (int n = 0; n < N; ++n) store(to.acc + m * to.stride + n * kWidth, sums[m][n]);
  }
}

template <int N, int M = kTile>
static inline void add_panel_of(int64_t height, const float* p, const float* values, int64_t begin, int64_t end,
                                const float* correction, const ValueSums& to) {
  if constexpr (M > 1) {
    if (height < M) return add_panel_of<N, M - 1>(height, p, values, begin, end, correction, to);
  }
  add_panel<M, N>(p, values, begin, end, correction, to);
}

// What only some of the rows see is added row by row, before and after what they have in common: p = 0 would not do,
// as 0 times a NaN or an infinity is NaN.
template <int N>
static __attribute__((noinline)) void add_uneven(const Group& g, const ValueTile& tile, const float* values,
                                                 const ValueSums& to) {
  if (to.fresh) {
    for (int64_t m = 0; m < tile.count; ++m) {
      UNROLL for (int n = 0; n < N; ++n) store(to.acc + m * to.stride + n * kWidth, zero());
    }
  }
  const bool common = tile.first < tile.last;
  const float* p = g.scores + tile.row;
  float correction[kTile] = {};
  const auto one = [&](int64_t m, int64_t begin, int64_t end) {
    if (begin >= end) return;
    add_panel<1, N>(p + m, values, begin, end, correction + m, {to.acc + m * to.stride, to.stride, false});
    correction[m] = 1.0f;
  };
  for (int64_t m = 0; m < tile.count; ++m) {
    correction[m] = g.correction[tile.row + m];
    one(m, g.begin[tile.row + m], common ? tile.first : g.end[tile.row + m]);
  }
  if (!common) return;
  add_panel_of<N>(tile.count, p, values, tile.first, tile.last, correction, {to.acc, to.stride, false});
  for (int64_t m = 0; m < tile.count; ++m) {
    correction[m] = 1.0f;
    one(m, tile.last, g.end[tile.row + m]);
  }
}

template <int N>
static void add_tiles(const Queries& w, const Group& g, const ValueTile* tiles, int64_t count, const float* values,
                      int64_t column) {
  for (int64_t t = 0; t < count; ++t) {
    const ValueTile& tile = tiles[t];
    const ValueSums to{w.acc + (g.query + tile.row) * w.padded + column, w.padded, g.fresh};
    if (tile.even) {
      add_panel_of<N>(tile.count, g.scores + tile.row, values, tile.first, tile.last, g.correction + tile.row, to);
    } else {
      add_uneven<N>(g, tile, values, to);
    }
  }
}

static inline void add_value_tiles(const Queries& w, const Group& g) {
  ValueTile tiles[(kGroup + kTile - 1) / kTile];
  const int64_t count = (g.count + kTile - 1) / kTile;
  for (int64_t t = 0; t < count; ++t) {
    const int64_t row = g.count * t / count;
    tiles[t] = value_tile(g, row, g.count * (t + 1) / count - row);
  }
  const float* values = w.values;
  int64_t column = 0;
  for (; column + kValuePanel <= w.padded; column += kValuePanel, values += kBlock * kValuePanel) {
    add_tiles<kValueVectors>(w, g, tiles, count, values, column);
  }
  if (column < w.padded) add_tiles<1>(w, g, tiles, count, values, column);
}

// ---- one group, one block -------------------------------------------------------------------------------------------

template <int N>
static void run_group(const AttentionPart& part, const Block& block, const Queries& w, Group& g,
                      NextRows& next) {
  const bool scaled = part.kind == KvKind::kI8;
  score_group<N>(w, g, next, scaled ? block.k_scale : nullptr, part.scale);
  soften_group<N>(w, g, scaled ? block.v_scale : nullptr);
  add_value_tiles(w, g);
}

template <int N = kGroupVectors>
static void run_group_of(const AttentionPart& part, const Block& block, const Queries& w, Group& g, NextRows& next) {
  if constexpr (N > 1) {
    if (g.count <= (N - 1) * kWidth) return run_group_of<N - 1>(part, block, w, g, next);
  }
  run_group<N>(part, block, w, g, next);
}

// The queries from `query` on, kGroup at most. fresh: the block is the first of its range.
static inline void run_queries(const AttentionPart& part, const Block& block, const Queries& w, int64_t query,
                               bool fresh, NextRows& next) {
  Group g;
  g.query = query;
  g.count = w.count - query < kGroup ? w.count - query : kGroup;
  g.fresh = fresh;
  g.scores = w.scores;
  see_group(part, block, w, g);
  if (g.first < g.last) return run_group_of(part, block, w, g, next);
  if (!fresh) return;
  for (int64_t i = 0; i < g.count * w.padded; i += kWidth) store(w.acc + query * w.padded + i, zero());
}
