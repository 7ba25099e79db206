// Many queries against one block in scratch: scores and the online softmax. A lane of a vector is a query, and keys are
// repeated element by element, so that keys need no turning, a query's maximum is found without looking across lanes,
// and a group of queries stays in the level-1 cache while the keys pass by. Every sum has the order of
// attention_tile.inl. Included by kernels_<isa>.cc after it and attention_direct.inl.

constexpr int64_t kGroup = kGroupVectors * kWidth;  // queries that meet a block together

// What a group sees of a block, and its probabilities.
struct Group {
  int64_t query, count;  // of the part's queries, kGroup at most
  bool fresh;            // it is the first block of a range: the sums of values are 0 and not there yet
  bool even;             // all of them see all that any sees
  int64_t first, last;   // what any of them sees
  int64_t begin[kGroup], end[kGroup];  // what each sees, empty as 0, 0
  float* scores;                       // [kBlock][kGroup]
  alignas(64) float correction[kGroup];
};

// Rows of the next block, a few of which are asked for with each turn of the work on this one: all at once would hold
// the loads back that this one waits for.
struct NextRows {
  Walk walk;
  int64_t asked, end;
  int64_t share = 0;  // with each turn
  void ask() {
    for (int64_t i = 0; i < share && asked < end; ++i) fetch_row(walk, asked++);
  }
};

static inline void see_group(const AttentionPart& part, const Block& block, const Queries& w, Group& g) {
  g.first = block.begin;
  g.last = block.end;
  g.even = part.window == 0 && w.oldest[g.query / kGroup] + 1 >= block.first + block.end;
  if (g.even) return;
  g.first = kBlock;
  g.last = 0;
  for (int64_t m = 0; m < g.count; ++m) {
    const Seen seen = seen_by(part, block, w.position[g.query + m]);
    g.begin[m] = seen.begin;
    g.end[m] = seen.end;
    if (seen.begin < seen.end && seen.begin < g.first) g.first = seen.begin;
    if (seen.end > g.last) g.last = seen.end;
  }
}

// ---- scores ---------------------------------------------------------------------------------------------------------

// K keys times N vectors of queries: one chain of additions for each score, over ascending d.
template <int K, int N>
static inline void score_keys(const float* q, const float* keys, int64_t dim, int64_t padded, const float* k_scale,
                              float scale, float* scores) {
  V acc[K][N];
  UNROLL for (int k = 0; k < K; ++k) { UNROLL for (int n = 0; n < N; ++n) acc[k][n] = zero(); }
  for (int64_t d = 0; d < dim; ++d) {
    V qv[N];
    UNROLL for (int n = 0; n < N; ++n) qv[n] = load(q + (n * dim + d) * kWidth);
    UNROLL for (int k = 0; k < K; ++k) {
      const V key = set1(keys[k * padded + d]);
      UNROLL for (int n = 0; n < N; ++n) acc[k][n] = fma(qv[n], key, acc[k][n]);
    }
  }
  UNROLL for (int k = 0; k < K; ++k) {
    UNROLL for (int n = 0; n < N; ++n) {
      V s = acc[k][n];
      if (k_scale != nullptr) s = mul(s, set1(k_scale[k]));
      store(scores + k * kGroup + n * kWidth, mul(s, set1(scale)));
    }
  }
}

template <int K, int N>
static inline void score_keys_at(int64_t j, const Queries& w, const Group& g, const float* k_scale, float scale) {
  score_keys<K, N>(w.q + g.query * w.dim, w.keys + j * w.padded, w.dim, w.padded,
                   k_scale != nullptr ? k_scale + j : nullptr, scale, g.scores + j * kGroup);
}

template <int N>
static void score_group(const Queries& w, const Group& g, NextRows& next, const float* k_scale, float scale) {
  constexpr int K = N == 1 ? 2 * kGroupKeys : kGroupKeys;
  int64_t j = g.first;
  for (; j + K <= g.last; j += K) {
    next.ask();
    score_keys_at<K, N>(j, w, g, k_scale, scale);
  }
  if (j < g.last && g.last - g.first >= K) {
    // The last ones with some before them, once more: the same scores, and no code for fewer keys.
    score_keys_at<K, N>(g.last - K, w, g, k_scale, scale);
    return;
  }
  for (; j < g.last; ++j) score_keys_at<1, N>(j, w, g, k_scale, scale);
}

// ---- softmax --------------------------------------------------------------------------------------------------------

// Scores that a query does not see become -infinity. One that sees none of the block meets a maximum of 0 meanwhile, so
// that its correction is 1 and its probabilities 0.
static __attribute__((noinline)) void hide_unseen(const Queries& w, const Group& g, float* hidden) {
  for (int64_t m = 0; m < g.count; ++m) {
    float* column = g.scores + m;
    for (int64_t j = g.first; j < g.begin[m]; ++j) column[j * kGroup] = kMinusInfinity;
    for (int64_t j = g.end[m] > g.first ? g.end[m] : g.first; j < g.last; ++j) column[j * kGroup] = kMinusInfinity;
    if (g.begin[m] < g.end[m]) continue;
    hidden[m] = w.maximum[g.query + m];
    w.maximum[g.query + m] = 0.0f;
  }
}

static __attribute__((noinline)) void restore_hidden(const Queries& w, const Group& g, const float* hidden) {
  for (int64_t m = 0; m < g.count; ++m) {
    if (g.begin[m] == g.end[m]) w.maximum[g.query + m] = hidden[m];
  }
}

// The raised maxima, and correction = e^(old - new maximum).
template <int N>
static inline void raise_maxima(const Queries& w, Group& g, V (&raised)[N]) {
  float* maximum = w.maximum + g.query;
  V other[N];  // a second chain, as each waits for its last comparison
  UNROLL for (int n = 0; n < N; ++n) {
    raised[n] = load(maximum + n * kWidth);
    other[n] = raised[n];
  }
  int64_t j = g.first;
  for (; j + 2 <= g.last; j += 2) {
    const float* row = g.scores + j * kGroup;
    UNROLL for (int n = 0; n < N; ++n) {
      raised[n] = max(load(row + n * kWidth), raised[n]);
      other[n] = max(load(row + kGroup + n * kWidth), other[n]);
    }
  }
  UNROLL for (int n = 0; n < N; ++n) {
    if (j < g.last) raised[n] = max(load(g.scores + j * kGroup + n * kWidth), raised[n]);
    raised[n] = max(other[n], raised[n]);
    store(g.correction + n * kWidth, exp(sub(load(maximum + n * kWidth), raised[n])));
    store(maximum + n * kWidth, raised[n]);
  }
}

// Scores to probabilities, times the values' scales. Sum l of a query is over the keys l, l + kWidth, ... of a block.
template <int N>
static void soften_group(const Queries& w, Group& g, const float* v_scale) {
  float hidden[kGroup];
  if (!g.even) hide_unseen(w, g, hidden);
  V raised[N];
  raise_maxima<N>(w, g, raised);
  for (int64_t l = 0; l < kWidth; ++l) {
    V block_sums[N];
    UNROLL for (int n = 0; n < N; ++n) block_sums[n] = zero();
    for (int64_t j = l; j < g.last; j += kWidth) {
      if (j < g.first) continue;
      float* row = g.scores + j * kGroup;
      UNROLL for (int n = 0; n < N; ++n) {
        V p = exp(sub(load(row + n * kWidth), raised[n]));
        block_sums[n] = add(block_sums[n], p);
        if (v_scale != nullptr) p = mul(p, set1(v_scale[j]));
        store(row + n * kWidth, p);
      }
    }
    float* sums = w.sums + l * w.padded_count + g.query;
    UNROLL for (int n = 0; n < N; ++n) {
      store(sums + n * kWidth, fma(load(sums + n * kWidth), load(g.correction + n * kWidth), block_sums[n]));
    }
  }
  if (!g.even) restore_hidden(w, g, hidden);
}
