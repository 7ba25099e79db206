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

// Adds the terms of the `count` elements that lie in the units of P panels of keys, the first of them element d.
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
static inline void score_units(const float* q, const V (&units)[P][4], int64_t count, V (&acc)[M][P]) {
  constexpr int kPerUnit = kind == KvKind::kF32 ? 1 : kind == KvKind::kI8 ? 4 : 2;
  UNROLL for (int u = 0; u < 4; ++u) {
    const int64_t left = count - u * kPerUnit;
    const float* at = q + u * kPerUnit * M;
    if (left > 0) score_element<kind, M, P, 0>(at, units, u, acc);
    if constexpr (kPerUnit > 1) {
      if (left > 1) score_element<kind, M, P, 1>(at + M, units, u, acc);
    }
    if constexpr (kPerUnit > 2) {
      if (left > 2) score_element<kind, M, P, 2>(at + 2 * M, units, u, acc);
      if (left > 3) score_element<kind, M, P, 3>(at + 3 * M, units, u, acc);
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
    score_units<kind, M, P>(q + d * M, units, kStep, acc);
  }
  if (d < dim) {
    UNROLL for (int p = 0; p < P; ++p) transpose_tail<kind>(rows + p * kWidth, d, dim, units[p]);
    score_units<kind, M, P>(q + d * M, units, dim - d, acc);
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

// As add_columns, over rows where they lie. `left` elements of the last vector exist, kWidth where it is whole.
template <KvKind kind, int M, int N, bool partial>
static inline void add_rows_direct(const Walk& walk, const float* p, int64_t d, int64_t left, int64_t padded,
                                   int64_t begin, int64_t end, const float* correction, float* acc) {
  V sums[M][N];
  UNROLL for (int m = 0; m < M; ++m) {
    const V factor = set1(correction[m]);
    UNROLL for (int n = 0; n < N; ++n) sums[m][n] = mul(load(acc + m * padded + d + n * kWidth), factor);
  }
  for (int64_t j = begin; j < end; ++j) {
    if (d == 0) fetch_row(walk, kBlock + j + kRowsAhead);
    const char* row = walk.block->v[j] + kv_bytes<kind>(d);
    V v[N];
    if constexpr (partial) {
      v[0] = load_kv_partial<kind>(row, left);
    } else {
      UNROLL for (int n = 0; n < N; ++n) v[n] = load_kv<kind>(row + kv_bytes<kind>(n * kWidth));
    }
    UNROLL for (int m = 0; m < M; ++m) {
      const V weight = set1(p[m * kBlock + j]);
      UNROLL for (int n = 0; n < N; ++n) sums[m][n] = fma(weight, v[n], sums[m][n]);
    }
  }
  UNROLL for (int m = 0; m < M; ++m) {
    UNROLL for (int n = 0; n < N; ++n) store(acc + m * padded + d + n * kWidth, sums[m][n]);
  }
}

template <KvKind kind, int M>
static void add_direct(const Walk& walk, const Queries& w, const float* p, int64_t begin, int64_t end,
                       const float* correction, float* acc) {
  constexpr int N = 6 * M <= kTile ? 8 : 2 * M <= kTile ? 4 : 2;
  int64_t d = 0;
  for (; d + N * kWidth <= w.dim; d += N * kWidth) {
    add_rows_direct<kind, M, N, false>(walk, p, d, kWidth, w.padded, begin, end, correction, acc);
  }
  for (; d + kWidth <= w.dim; d += kWidth) {
    add_rows_direct<kind, M, 1, false>(walk, p, d, kWidth, w.padded, begin, end, correction, acc);
  }
  if (d < w.dim) {
    add_rows_direct<kind, M, 1, true>(walk, p, d, w.dim - d, w.padded, begin, end, correction, acc);
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
