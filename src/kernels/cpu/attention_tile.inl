// A tile: some query rows against one block in scratch. Scores, the online softmax, the sum of values. Tiles of any
// height give the same bits: each score and each output element owns one lane of one accumulator, which meets its terms
// in ascending order. Included by kernels_<isa>.cc after attention_block.inl.

constexpr float kMinusInfinity = -__builtin_inff();

// What a part of the work holds between blocks, all in its scratch. Row i of an array belongs to query i.
struct Queries {
  int64_t count;
  int64_t dim;
  int64_t padded;     // dim filled up to whole vectors
  int64_t* position;  // [count]
  const float* q;     // tile by tile, [dim][queries of the tile]
  float* acc;         // [count][padded]
  float* maximum;     // [padded_count]
  float* sums;        // [count][kWidth]
  const float* keys;  // as load_block leaves them
  const float* values;
  float* scores;  // [kTile][kBlock]
  // Of many queries, attention_lanes.inl: sums are [kWidth][padded_count], scores [kBlock][kGroup], q [dim][kWidth] for
  // every kWidth of them, and padded_count is count filled up to whole vectors.
  int64_t padded_count;
  const int64_t* oldest;  // the least position of each kGroup queries
};

// Which entries of the block each query of a tile sees: [begin[m], end[m]), empty as 0, 0.
struct Sight {
  int64_t begin[kTile], end[kTile];
  int64_t first, last;                // [first, last): what any of them sees
  int64_t common_first, common_last;  // what all of them see
};

// The entries that a query at `position` sees, empty as 0, 0.
struct Seen {
  int64_t begin, end;
};
static inline Seen seen_by(const AttentionPart& part, const Block& block, int64_t position) {
  int64_t begin = block.begin;
  int64_t end = position + 1 - block.first;
  if (part.window > 0 && end - part.window > begin) begin = end - part.window;
  if (end > block.end) end = block.end;
  if (begin >= end) return {0, 0};
  return {begin, end};
}

static __attribute__((noinline)) Sight see(const AttentionPart& part, const Block& block, const int64_t* position,
                                           int64_t count) {
  Sight sight;
  sight.first = kBlock;
  sight.last = 0;
  sight.common_first = 0;
  sight.common_last = kBlock;
  for (int64_t m = 0; m < count; ++m) {
    const auto [begin, end] = seen_by(part, block, position[m]);
    sight.begin[m] = begin;
    sight.end[m] = end;
    if (begin < end && begin < sight.first) sight.first = begin;
    if (end > sight.last) sight.last = end;
    if (begin > sight.common_first) sight.common_first = begin;
    if (end < sight.common_last) sight.common_last = end;
  }
  return sight;
}

// ---- scores ---------------------------------------------------------------------------------------------------------

// M rows times N vectors of keys: one chain of additions for each score, over ascending d.
template <int M, int N>
static inline void score_columns(const float* q, const float* keys, int64_t dim, const float* k_scale, float scale,
                                 float* scores) {
  V acc[M][N];
  UNROLL for (int m = 0; m < M; ++m) { UNROLL for (int n = 0; n < N; ++n) acc[m][n] = zero(); }
  for (int64_t d = 0; d < dim; ++d) {
    V k[N];
    UNROLL for (int n = 0; n < N; ++n) k[n] = load(keys + (n * dim + d) * kWidth);
    UNROLL for (int m = 0; m < M; ++m) {
      const V qv = set1(q[d * M + m]);
      UNROLL for (int n = 0; n < N; ++n) acc[m][n] = fma(qv, k[n], acc[m][n]);
    }
  }
  UNROLL for (int n = 0; n < N; ++n) {
    UNROLL for (int m = 0; m < M; ++m) {
      V s = acc[m][n];
      if (k_scale != nullptr) s = mul(s, load(k_scale + n * kWidth));
      store(scores + m * kBlock + n * kWidth, mul(s, set1(scale)));
    }
  }
}

template <int M>
static void score_tile(const Queries& w, const float* q, const Sight& sight, const float* k_scale, float scale) {
  constexpr int N = 3 * M <= kTile ? 4 : 2;
  int64_t j = sight.first / kWidth * kWidth;
  const auto scales = [&] { return k_scale != nullptr ? k_scale + j : nullptr; };
  for (; j + (N - 1) * kWidth < sight.last; j += N * kWidth) {
    score_columns<M, N>(q, w.keys + j * w.dim, w.dim, scales(), scale, w.scores + j);
  }
  for (; j < sight.last; j += kWidth) {
    score_columns<M, 1>(q, w.keys + j * w.dim, w.dim, scales(), scale, w.scores + j);
  }
}

// ---- softmax --------------------------------------------------------------------------------------------------------

// Scores to probabilities below the raised maximum, times the values' scales; correction[m] = e^(old - new maximum).
static __attribute__((noinline)) void soften(const Queries& w, int64_t query, int64_t count, const Sight& sight,
                                             const float* v_scale, float* correction) {
  const int64_t first = sight.first / kWidth * kWidth;
  float raised[kTile + kWidth];
  for (int64_t m = 0; m < count; ++m) {
    float* row = w.scores + m * kBlock;
    raised[m] = w.maximum[query + m];
    correction[m] = 0.0f;
    if (sight.begin[m] == sight.end[m]) continue;
    for (int64_t j = first; j < sight.begin[m]; ++j) row[j] = kMinusInfinity;
    for (int64_t j = sight.end[m]; j < sight.last || j % kWidth != 0; ++j) row[j] = kMinusInfinity;
    V top = set1(raised[m]);
    for (int64_t j = first; j < sight.last; j += kWidth) top = max(load(row + j), top);
    raised[m] = largest(top);
    correction[m] = w.maximum[query + m] - raised[m];
  }
  for (int64_t m = count; m < (count + kWidth - 1) / kWidth * kWidth; ++m) correction[m] = 0.0f;
  for (int64_t m = 0; m < count; m += kWidth) store(correction + m, exp(load(correction + m)));
  for (int64_t m = 0; m < count; ++m) {
    if (sight.begin[m] == sight.end[m]) continue;
    float* row = w.scores + m * kBlock;
    float* sums = w.sums + (query + m) * kWidth;
    V block_sums = zero();
    for (int64_t j = first; j < sight.last; j += kWidth) {
      V p = exp(sub(load(row + j), set1(raised[m])));
      block_sums = add(block_sums, p);
      if (v_scale != nullptr) p = mul(p, load(v_scale + j));
      store(row + j, p);
    }
    store(sums, fma(load(sums), set1(correction[m]), block_sums));
    w.maximum[query + m] = raised[m];
  }
}

// ---- values ---------------------------------------------------------------------------------------------------------

// acc = acc * correction + the sum of p[j] v[j] over ascending j in [begin, end), for M rows and N vectors.
template <int M, int N>
static inline void add_columns(const float* p, const float* values, int64_t padded, int64_t begin, int64_t end,
                               const float* correction, float* acc) {
  V sums[M][N];
  UNROLL for (int m = 0; m < M; ++m) {
    const V factor = set1(correction[m]);
    UNROLL for (int n = 0; n < N; ++n) sums[m][n] = mul(load(acc + m * padded + n * kWidth), factor);
  }
  for (int64_t j = begin; j < end; ++j) {
    V v[N];
    UNROLL for (int n = 0; n < N; ++n) v[n] = load(values + j * padded + n * kWidth);
    UNROLL for (int m = 0; m < M; ++m) {
      const V weight = set1(p[m * kBlock + j]);
      UNROLL for (int n = 0; n < N; ++n) sums[m][n] = fma(weight, v[n], sums[m][n]);
    }
  }
  UNROLL for (int m = 0; m < M; ++m) {
    UNROLL for (int n = 0; n < N; ++n) store(acc + m * padded + n * kWidth, sums[m][n]);
  }
}

template <int M>
static void add_values(const float* p, const float* values, int64_t padded, int64_t begin, int64_t end,
                       const float* correction, float* acc) {
  constexpr int N = 6 * M <= kTile ? 8 : 3 * M <= kTile ? 4 : 2;
  int64_t d = 0;
  for (; d + N * kWidth <= padded; d += N * kWidth) {
    add_columns<M, N>(p, values + d, padded, begin, end, correction, acc + d);
  }
  for (; d < padded; d += kWidth) {
    add_columns<M, 1>(p, values + d, padded, begin, end, correction, acc + d);
  }
}

struct ScratchValues {
  const Queries* w;
  template <int M>
  void add(const float* p, int64_t begin, int64_t end, const float* correction, float* acc) const {
    add_values<M>(p, w->values, w->padded, begin, end, correction, acc);
  }
};

// What only some of the rows see is added row by row, before and after what they have in common: p = 0 would not do,
// as 0 times a NaN or an infinity is NaN.
template <int M, typename Values>
static void add_tile(const Values& values, const Queries& w, const Sight& sight, float* correction, float* acc) {
  const bool common = sight.common_first < sight.common_last;
  const auto one = [&](int64_t m, int64_t begin, int64_t end) {
    if (begin >= end) return;
    values.template add<1>(w.scores + m * kBlock, begin, end, correction + m, acc + m * w.padded);
    correction[m] = 1.0f;
  };
  for (int64_t m = 0; m < M; ++m) one(m, sight.begin[m], common ? sight.common_first : sight.end[m]);
  if (!common) return;
  values.template add<M>(w.scores, sight.common_first, sight.common_last, correction, acc);
  for (int64_t m = 0; m < M; ++m) correction[m] = 1.0f;
  for (int64_t m = 0; m < M; ++m) one(m, sight.common_last, sight.end[m]);
}

// ---- one tile, one block --------------------------------------------------------------------------------------------

template <int M>
static void run_tile(const AttentionPart& part, const Block& block, const Queries& w, int64_t query) {
  const Sight sight = see(part, block, w.position + query, M);
  if (sight.first >= sight.last) return;
  const bool scaled = part.kind == KvKind::kI8;
  score_tile<M>(w, w.q + query * w.dim, sight, scaled ? block.k_scale : nullptr, part.scale);
  float correction[kTile + kWidth];
  soften(w, query, M, sight, scaled ? block.v_scale : nullptr, correction);
  add_tile<M>(ScratchValues{&w}, w, sight, correction, w.acc + query * w.padded);
}

template <int M>
static void run_tile_of(int64_t count, const AttentionPart& part, const Block& block, const Queries& w, int64_t query) {
  if constexpr (M > 1) {
    if (count < M) return run_tile_of<M - 1>(count, part, block, w, query);
  }
  run_tile<M>(part, block, w, query);
}
