// linear: dot products along k over row-major weights. Tiles of different shapes give the same bits, because every
// output element owns one 8-lane sum that meets k in ascending order, whatever else the tile holds.
// Included by kernels_<isa>.cc after the vector type.

template <WeightKind kind>
static inline int64_t weight_bytes(int64_t count) {
  return count * (kind == WeightKind::kF32 ? 4 : 2);
}

template <WeightKind kind>
static inline V8 load_weights_partial(const char* p, int64_t n) {
  char padded[32] = {};
  __builtin_memcpy(padded, p, static_cast<uint64_t>(weight_bytes<kind>(n)));
  return load_weights<kind>(padded);
}

// acc[m][n] += x[m][0..k) * w[n][0..k) lane by lane. w_stride counts bytes.
template <WeightKind kind, int M, int N>
static inline __attribute__((always_inline)) void multiply_tile(const float* x, int64_t x_stride, const char* w,
                                                                int64_t w_stride, int64_t k, V8 (&acc)[M][N]) {
  int64_t i = 0;
  for (; i + 8 <= k; i += 8) {
    V8 xv[M];
    UNROLL for (int m = 0; m < M; ++m) xv[m] = load(x + m * x_stride + i);
    UNROLL for (int n = 0; n < N; ++n) {
      const V8 wv = load_weights<kind>(w + n * w_stride + weight_bytes<kind>(i));
      UNROLL for (int m = 0; m < M; ++m) acc[m][n] = fma(xv[m], wv, acc[m][n]);
    }
  }
  if (i == k) return;
  V8 xv[M];
  UNROLL for (int m = 0; m < M; ++m) xv[m] = load_partial(x + m * x_stride + i, k - i);
  UNROLL for (int n = 0; n < N; ++n) {
    const V8 wv = load_weights_partial<kind>(w + n * w_stride + weight_bytes<kind>(i), k - i);
    UNROLL for (int m = 0; m < M; ++m) acc[m][n] = fma(xv[m], wv, acc[m][n]);
  }
}

// Lane sums to elements (m0 .. m0+M) x (n0 .. n0+N) of y.
template <int M, int N>
static inline __attribute__((always_inline)) void finish_tile(const LinearPart& part, int64_t m0, int64_t n0,
                                                              V8 (&acc)[M][N]) {
  UNROLL for (int m = 0; m < M; ++m) {
    float sums[N];
    if constexpr (N % 4 == 0) {
      UNROLL for (int n = 0; n < N; n += 4) sum4(acc[m][n], acc[m][n + 1], acc[m][n + 2], acc[m][n + 3], sums + n);
    } else {
      UNROLL for (int n = 0; n < N; ++n) sums[n] = sum(acc[m][n]);
    }
    float* y = part.y + (m0 + m) * part.y_stride + n0;
    for (int n = 0; n < N; ++n) {
      float value = sums[n];
      if (part.bias != nullptr) value = value + part.bias[n0 + n];
      if (part.accumulate) value = value + y[n];
      y[n] = value;
    }
  }
}

// ---- few rows -------------------------------------------------------------------------------------------------------

template <WeightKind kind, int M, int N>
static void direct_tile(const LinearPart& part, int64_t m, int64_t n) {
  V8 acc[M][N];
  UNROLL for (int i = 0; i < M; ++i) { UNROLL for (int j = 0; j < N; ++j) acc[i][j] = zero(); }
  const int64_t row_bytes = weight_bytes<kind>(part.k);
  multiply_tile<kind, M, N>(part.x + m * part.x_stride, part.x_stride,
                            static_cast<const char*>(part.weight) + n * row_bytes, row_bytes, part.k, acc);
  finish_tile<M, N>(part, m, n, acc);
}

// All rows of x times N rows of W, which stay in the level-1 cache from the first group of rows on.
template <WeightKind kind, int N>
static void direct_columns(const LinearPart& part, int64_t n) {
  int64_t m = part.m_begin;
  if constexpr (N == 4) {
    for (; m + 3 <= part.m_end; m += 3) direct_tile<kind, 3, N>(part, m, n);
  }
  for (; m + 2 <= part.m_end; m += 2) direct_tile<kind, 2, N>(part, m, n);
  for (; m < part.m_end; ++m) direct_tile<kind, 1, N>(part, m, n);
}

template <WeightKind kind>
static void direct_all(const LinearPart& part) {
  int64_t n = part.n_begin;
  if (part.m_end - part.m_begin == 1) {
    for (; n + 8 <= part.n_end; n += 8) direct_tile<kind, 1, 8>(part, part.m_begin, n);
  }
  for (; n + 4 <= part.n_end; n += 4) direct_columns<kind, 4>(part, n);
  for (; n < part.n_end; ++n) direct_columns<kind, 1>(part, n);
}

static void linear_direct(const LinearPart& part) {
  switch (part.kind) {
    case WeightKind::kF32:
      return direct_all<WeightKind::kF32>(part);
    case WeightKind::kF16:
      return direct_all<WeightKind::kF16>(part);
    case WeightKind::kBF16:
      return direct_all<WeightKind::kBF16>(part);
  }
}

// ---- many rows ------------------------------------------------------------------------------------------------------

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

// One pass over a slice of k. Lane sums of unfinished elements wait in `lanes` between passes, so the order of the
// additions is that of one long pass.
struct Pass {
  const LinearPart* part;
  const char* weight;  // f32, row part->n_begin, first element of the slice
  int64_t weight_stride;
  int64_t k_begin, k_count;
  bool first, last;
  float* lanes;  // [m][n][8] from the part's first row and column
};

template <int M, int N>
static void pass_tile(const Pass& pass, int64_t m, int64_t n) {
  const LinearPart& part = *pass.part;
  float* lanes = pass.lanes + ((m - part.m_begin) * kLinearColumns + (n - part.n_begin)) * 8;
  V8 acc[M][N];
  UNROLL for (int i = 0; i < M; ++i) {
    UNROLL for (int j = 0; j < N; ++j) { acc[i][j] = pass.first ? zero() : load(lanes + (i * kLinearColumns + j) * 8); }
  }
  multiply_tile<WeightKind::kF32, M, N>(part.x + m * part.x_stride + pass.k_begin, part.x_stride,
                                        pass.weight + (n - part.n_begin) * pass.weight_stride, pass.weight_stride,
                                        pass.k_count, acc);
  if (pass.last) {
    finish_tile<M, N>(part, m, n, acc);
    return;
  }
  UNROLL for (int i = 0; i < M; ++i) {
    UNROLL for (int j = 0; j < N; ++j) store(lanes + (i * kLinearColumns + j) * 8, acc[i][j]);
  }
}

template <int N>
static void pass_columns(const Pass& pass, int64_t n) {
  int64_t m = pass.part->m_begin;
  for (; m + 3 <= pass.part->m_end; m += 3) pass_tile<3, N>(pass, m, n);
  for (; m < pass.part->m_end; ++m) pass_tile<1, N>(pass, m, n);
}

static void linear_blocked(const LinearPart& part) {
  const bool wide = part.kind == WeightKind::kF32;
  const int64_t size = wide ? 4 : 2;
  const char* weight = static_cast<const char*>(part.weight);
  for (int64_t k = 0; k < part.k || k == 0; k += kLinearDepth) {
    const int64_t count = part.k - k < kLinearDepth ? part.k - k : kLinearDepth;
    Pass pass{&part, nullptr, 0, k, count, k == 0, k + count == part.k, part.scratch + kLinearColumns * kLinearDepth};
    if (wide) {
      pass.weight = weight + (part.n_begin * part.k + k) * size;
      pass.weight_stride = part.k * size;
    } else {
      for (int64_t n = part.n_begin; n < part.n_end; ++n) {
        widen(part.kind, weight + (n * part.k + k) * size, count, part.scratch + (n - part.n_begin) * kLinearDepth);
      }
      pass.weight = reinterpret_cast<const char*>(part.scratch);
      pass.weight_stride = kLinearDepth * 4;
    }
    int64_t n = part.n_begin;
    for (; n + 4 <= part.n_end; n += 4) pass_columns<4>(pass, n);
    for (; n < part.n_end; ++n) pass_columns<1>(pass, n);
  }
}
