// linear of bf16 weights where activations are bf16 too: Activations::kBF16 of ops.h. x is rounded once, when it is
// packed, and the weights are read as they lie in their panels (tiles.h), two k at a time.
//
// The order, whatever the tile: for each block of kLinearDepth of k one chain from +0 over the pairs (2i, 2i+1),
// ascending, sum = x[2i] * w[2i] + (x[2i+1] * w[2i+1] + sum), each rounded once; then the blocks' sums are added,
// ascending; then bias; then the old y. That is VDPBF16PS, and like it all this takes numbers below 2^-126 for zero.
// A product of two bf16 is exact in f32, so fused or not is the same.
// Included by the files of one ISA after linear_sums.inl and the XPair of that ISA: what a pair of x is in packed x,
// with make_pair() and lv_dot().

// From here to its end, numbers below 2^-126 are zero.
struct ZeroDenormals {
#if defined(__x86_64__)
  static constexpr uint32_t kBits = 0x8040;  // of the control word: "flush to zero" and "denormals are zeros"
  ZeroDenormals() : old(__builtin_ia32_stmxcsr()) { __builtin_ia32_ldmxcsr(old | kBits); }
  ~ZeroDenormals() { __builtin_ia32_ldmxcsr(old); }
  const uint32_t old;
#else
  ZeroDenormals() {}
#endif
};

// The bits of a bf16: to nearest, ties to even. NaN stays one. As f32_to_bf16() of kernels/half.h.
static inline uint32_t rounded_bits(float x) {
  uint32_t bits = 0;
  __builtin_memcpy(&bits, &x, sizeof bits);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return (bits >> 16) | 0x40u;
  return (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
}

static inline int64_t pairs_of(int64_t k) { return (k + 1) / 2; }

// A tile of M rows: for each pair of k its M pairs side by side.
static void pack_rounded(const float* x, int64_t x_stride, int64_t rows, int64_t k, int64_t tile_begin,
                         int64_t tile_end, void* packed) {
  for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
    const int64_t begin = tile_row(rows, tile), height = tile_row(rows, tile + 1) - begin;
    XPair* to = static_cast<XPair*>(packed) + begin * pairs_of(k);
    for (int64_t m = 0; m < height; ++m) {
      const float* from = x + (begin + m) * x_stride;
      for (int64_t i = 0; i < k / 2; ++i) to[i * height + m] = make_pair(from[2 * i], from[2 * i + 1]);
      if (k % 2 != 0) to[k / 2 * height + m] = make_pair(from[k - 1], 0.0f);  // so is the weight that pads the panel
    }
  }
}

// The weights of the next block come to the level-2 cache meanwhile: `ahead` moves by `ahead_step` a pair.
template <int M, int V>
static void rounded_tile(const XPair* x, const char* w, int64_t line, int64_t pairs, const char* ahead,
                         int64_t ahead_step, const Target& target) {
  LV acc[M][V];
  UNROLL for (int m = 0; m < M; ++m) { UNROLL for (int v = 0; v < V; ++v) acc[m][v] = lv_zero(); }
  for (int64_t i = 0; i < pairs; ++i, x += M, w += line, ahead += ahead_step) {
    __builtin_prefetch(ahead, 0, 2);
    if constexpr (M < 4) __builtin_prefetch(ahead + 64, 0, 2);  // the only tile, or one of few: it asks for a whole line
    LPairs wv[V];
    UNROLL for (int v = 0; v < V; ++v) wv[v] = lv_load_pairs(w + v * kLanes * 4);
    UNROLL for (int m = 0; m < M; ++m) {
      UNROLL for (int v = 0; v < V; ++v) acc[m][v] = lv_dot(x[m], wv[v], acc[m][v]);
    }
  }
  close_block<M, V>(target, acc);
}

template <int V, int M = kRowTile>
static inline void rounded_tile_of(int64_t height, const XPair* x, const char* w, int64_t line, int64_t pairs,
                                   const char* ahead, int64_t ahead_step, const Target& target) {
  if constexpr (M > 1) {
    if (height < M) return rounded_tile_of<V, M - 1>(height, x, w, line, pairs, ahead, ahead_step, target);
  }
  rounded_tile<M, V>(x, w, line, pairs, ahead, ahead_step, target);
}

template <int V>
static void rounded_panel(const LinearPart& part, int64_t panel) {
  constexpr int64_t kColumns = V * kLanes;
  const int64_t width = panel_width(part, panel), line = width * 4, depth = pairs_of(part.k);
  const int64_t first_row = tile_row(part.rows, part.tile_begin);
  const char* w = part.weight + panel * 32 * ((part.k + 31) / 32 * 32) * 2;
  const int64_t block_bytes = kLinearDepth / 2 * line;
  for (int64_t k = 0; k < part.k || k == 0; k += kLinearDepth, w += block_bytes) {
    const int64_t count = part.k - k < kLinearDepth ? part.k - k : kLinearDepth;
    const char* ahead = w + block_bytes;
    for (int64_t column = 0; column < width && panel * 32 + column < part.n; column += kColumns) {
      for (int64_t tile = part.tile_begin; tile < part.tile_end; ++tile) {
        const int64_t row = tile_row(part.rows, tile), height = tile_row(part.rows, tile + 1) - row;
        float* sums = part.scratch + (row - first_row) * 32 + column * height;
        rounded_tile_of<V>(height, static_cast<const XPair*>(part.packed_x) + row * depth + k / 2 * height,
                           w + column * 4, line, pairs_of(count), ahead, line,
                           {&part, row, panel * 32 + column, sums, k == 0, k + count == part.k});
        ahead = w;  // asked for once; what is here already costs little
      }
    }
  }
}

static void linear_rounded(const LinearPart& part) {
  const ZeroDenormals zero_denormals;
  for (int64_t panel = part.panel_begin; panel < part.panel_end; ++panel) {
    if (panel_width(part, panel) >= kVectors * kLanes) {
      rounded_panel<kVectors>(part, panel);
    } else {
      rounded_panel<(kVectors + 1) / 2>(part, panel);
    }
  }
}

static constexpr LinearKernel kLinearRounded = {
    .few_rows = 0,
    .row_tile = kRowTile,
    .even_tiles = true,
    .element_bytes = sizeof(XPair) / 2,
    .depth = 2,
    .block_rows = kBlockRows,
    .block_panels = 1,
    .scratch_floats = 32 * (kBlockRows + kRowTile),
    .few = nullptr,
    .many = linear_rounded,
    .pack = pack_rounded,
};
