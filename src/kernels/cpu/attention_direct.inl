// The tile for few queries (decode): keys and values are read once, so they are turned and widened in registers, on the
// way from the page to the sums, and rows are asked for some way ahead of their use. The order of every sum is that of
// attention_tile.inl. Included by kernels_<isa>.cc after it.

constexpr int64_t kRowsAhead = 32;  // of 8 KiB in bf16: some hundred nanoseconds of reading

// Asks for a cache line. (g++ 12 takes a function of nothing but __builtin_prefetch for one without effect.)
static inline void fetch_line(const char* p) {
#if defined(__x86_64__)
  __asm__ volatile("prefetcht1 %0" : : "m"(*p));
#else
  __builtin_prefetch(p);
#endif
}

// The rows of a block in the order of their use, keys then values, and those of the next block behind them.
struct Walk {
  const Block* block;
  const Block* next;
  int64_t row_bytes;
};

// Entry i of the walk: 0 .. kBlock - 1 are keys, then values, then keys of the next block.
static inline void fetch_row(const Walk& walk, int64_t i) {
  const char* row = i < kBlock             ? walk.block->k[i]
                    : i < 2 * kBlock       ? walk.block->v[i - kBlock]
                    : walk.next != nullptr ? walk.next->k[i - 2 * kBlock]
                                           : kZeroRow;
  for (int64_t b = 0; b < walk.row_bytes; b += 64) fetch_line(row + b);
}

// Adds the term of element `index` of unit u of P panels of keys; score_units those of all elements of the units.
template <KvKind kind, int M, int P, int index>
static inline void score_element(const float* q, const V (&units)[P][4], int u, V (&acc)[M][P]) {
  V k[P];
  UNROLL for (int p = 0; p < P; ++p) k[p] = widen_unit<kind, index>(units[p][u]);
  UNROLL for (int m = 0; m < M; ++m) {
    const V qv = set1(q[m]);
    UNROLL for (int p = 0; p < P; ++p) acc[m][p] = fma(qv, k[p], acc[m][p]);
  }
}

template <KvKind kind, int M, int P>
static inline void score_units(const float* q, const V (&units)[P][4], V (&acc)[M][P]) {
  constexpr int kPerUnit = kind == KvKind::kF32 ? 1 : kind == KvKind::kI8 ? 4 : 2;
  UNROLL for (int u = 0; u < 4; ++u) {
    const float* at = q + u * kPerUnit * M;
    score_element<kind, M, P, 0>(at, units, u, acc);
    if constexpr (kPerUnit > 1) score_element<kind, M, P, 1>(at + M, units, u, acc);
    if constexpr (kPerUnit > 2) {
      score_element<kind, M, P, 2>(at + 2 * M, units, u, acc);
      score_element<kind, M, P, 3>(at + 3 * M, units, u, acc);
    }
  }
}

// Adds the terms of the elements from d on, less than 16 bytes of each key. Few head dimensions have any, so this
// exists once for all tiles: acc is [M][P].
template <KvKind kind>
static __attribute__((noinline)) void score_edge(const char* const* rows, const float* q, int64_t d, int64_t dim, int M,
                                                 int P, V* acc) {
  float keys[16 * kWidth];
  for (int p = 0; p < P; ++p) {
    V units[4];
    transpose_tail<kind>(rows + p * kWidth, d, dim, units);
    store_units<kind>(units, dim - d, keys);
    for (int64_t i = 0; i < dim - d; ++i) {
      const V k = load(keys + i * kWidth);
      for (int m = 0; m < M; ++m) acc[m * P + p] = fma(set1(q[i * M + m]), k, acc[m * P + p]);
    }
  }
}

// Scores of P panels of kWidth keys from entry j on.
template <KvKind kind, int M, int P>
static inline void score_panels(const Walk& walk, int64_t j, const float* q, int64_t dim, float scale, float* scores) {
  constexpr int64_t kStep = kind == KvKind::kF32 ? 4 : kind == KvKind::kI8 ? 16 : 8;  // elements in 16 bytes
  const char* const* rows = walk.block->k + j;
  V acc[M][P];
  UNROLL for (int m = 0; m < M; ++m) { UNROLL for (int p = 0; p < P; ++p) acc[m][p] = zero(); }
  V units[P][4];
  int64_t ahead = j + kRowsAhead;  // next row to ask for
  const int64_t ahead_end = ahead + P * kWidth;
  int64_t owed = 0;
  int64_t d = 0;
  for (; d + kStep <= dim; d += kStep) {
    for (owed += P * kWidth * kStep; owed >= dim && ahead < ahead_end; owed -= dim) fetch_row(walk, ahead++);
    UNROLL for (int p = 0; p < P; ++p) transpose_rows(rows + p * kWidth, kv_bytes<kind>(d), units[p]);
    score_units<kind, M, P>(q + d * M, units, acc);
  }
  if (d < dim) {
    V sums[M * P];  // a copy, so that acc itself has no address
    UNROLL for (int m = 0; m < M; ++m) { UNROLL for (int p = 0; p < P; ++p) sums[m * P + p] = acc[m][p]; }
    score_edge<kind>(rows, q + d * M, d, dim, M, P, sums);
    UNROLL for (int m = 0; m < M; ++m) { UNROLL for (int p = 0; p < P; ++p) acc[m][p] = sums[m * P + p]; }
  }
  UNROLL for (int m = 0; m < M; ++m) {
    UNROLL for (int p = 0; p < P; ++p) {
      V s = acc[m][p];
      if constexpr (kind == KvKind::kI8) s = mul(s, load(walk.block->k_scale + j + p * kWidth));
      store(scores + m * kBlock + j + p * kWidth, mul(s, set1(scale)));
    }
  }
}

template <KvKind kind, int M>
static void score_direct(const Walk& walk, const Queries& w, const float* q, const Sight& sight, float scale) {
  constexpr int P = 4 * M <= 3 * kTile ? 2 : 1;
  int64_t j = sight.first / kWidth * kWidth;
  for (; j + (P - 1) * kWidth < sight.last; j += P * kWidth) {
    score_panels<kind, M, P>(walk, j, q, w.dim, scale, w.scores);
  }
  for (; j < sight.last; j += kWidth) score_panels<kind, M, 1>(walk, j, q, w.dim, scale, w.scores);
}

// As add_columns, over rows where they lie.
template <KvKind kind, int M, int N>
static inline void add_rows_direct(const Walk& walk, const float* p, int64_t d, int64_t padded, int64_t begin,
                                   int64_t end, const float* correction, float* acc) {
  V sums[M][N];
  UNROLL for (int m = 0; m < M; ++m) {
    const V factor = set1(correction[m]);
    UNROLL for (int n = 0; n < N; ++n) sums[m][n] = mul(load(acc + m * padded + d + n * kWidth), factor);
  }
  for (int64_t j = begin; j < end; ++j) {
    if (d == 0) fetch_row(walk, kBlock + j + kRowsAhead);
    const char* row = walk.block->v[j] + kv_bytes<kind>(d);
    V v[N];
    UNROLL for (int n = 0; n < N; ++n) v[n] = load_kv<kind>(row + kv_bytes<kind>(n * kWidth));
    UNROLL for (int m = 0; m < M; ++m) {
      const V weight = set1(p[m * kBlock + j]);
      UNROLL for (int n = 0; n < N; ++n) sums[m][n] = fma(weight, v[n], sums[m][n]);
    }
  }
  UNROLL for (int m = 0; m < M; ++m) {
    UNROLL for (int n = 0; n < N; ++n) store(acc + m * padded + d + n * kWidth, sums[m][n]);
  }
}

// The same for the last vector where it is not whole, of which `left` elements exist. Once for all tiles, as
// score_edge.
template <KvKind kind>
static __attribute__((noinline)) void add_edge_direct(const Walk& walk, const float* p, int64_t d, int64_t left, int M,
                                                      int64_t padded, int64_t begin, int64_t end,
                                                      const float* correction, float* acc) {
  for (int m = 0; m < M; ++m) {
    float* sums = acc + m * padded + d;
    store(sums, mul(load(sums), set1(correction[m])));
  }
  for (int64_t j = begin; j < end; ++j) {
    if (d == 0) fetch_row(walk, kBlock + j + kRowsAhead);
    const V v = load_kv_partial<kind>(walk.block->v[j] + kv_bytes<kind>(d), left);
    for (int m = 0; m < M; ++m) {
      float* sums = acc + m * padded + d;
      store(sums, fma(set1(p[m * kBlock + j]), v, load(sums)));
    }
  }
}

template <KvKind kind, int M>
static void add_direct(const Walk& walk, const Queries& w, const float* p, int64_t begin, int64_t end,
                       const float* correction, float* acc) {
  constexpr int N = 6 * M <= kTile ? 8 : 2 * M <= kTile ? 4 : 2;
  int64_t d = 0;
  for (; d + N * kWidth <= w.dim; d += N * kWidth) {
    add_rows_direct<kind, M, N>(walk, p, d, w.padded, begin, end, correction, acc);
  }
  for (; d + kWidth <= w.dim; d += kWidth) {
    add_rows_direct<kind, M, 1>(walk, p, d, w.padded, begin, end, correction, acc);
  }
  if (d < w.dim) {
    add_edge_direct<kind>(walk, p, d, w.dim - d, M, w.padded, begin, end, correction, acc);
  }
}

template <KvKind kind>
struct DirectValues {
  const Walk* walk;
  const Queries* w;
  template <int M>
  void add(const float* p, int64_t begin, int64_t end, const float* correction, float* acc) const {
    add_direct<kind, M>(*walk, *w, p, begin, end, correction, acc);
  }
};

template <KvKind kind, int M>
static void run_direct(const AttentionPart& part, const Walk& walk, const Queries& w) {
  const Block& block = *walk.block;
  const Sight sight = see(part, block, w.position, M);
  if (sight.first >= sight.last) return;
  score_direct<kind, M>(walk, w, w.q, sight, part.scale);
  float correction[kTile + kWidth];
  soften(w, 0, M, sight, kind == KvKind::kI8 ? block.v_scale : nullptr, correction);
  add_tile<M>(DirectValues<kind>{&walk, &w}, w, sight, correction, w.acc);
}

template <KvKind kind, int M>
static void run_direct_of(const AttentionPart& part, const Walk& walk, const Queries& w) {
  if constexpr (M > 1) {
    if (w.count < M) return run_direct_of<kind, M - 1>(part, walk, w);
  }
  run_direct<kind, M>(part, walk, w);
}
