// What the texts of linear for plain weights share: the blocks of k, the rows' tiles and the way of sums to y.
// Included by the files of one ISA after linear_vec_<isa>.inl.

static constexpr int64_t kLinearDepth = 256;  // of k in a chain of sums: part of the order
static constexpr int64_t kBlockRows = 192;    // of packed x, 768 KiB of f32 at k = 1024

static inline int64_t panel_width(const LinearPart& part, int64_t panel) { return part.n - panel * 32 > 16 ? 32 : 16; }
static inline int64_t tile_row(int64_t rows, int64_t tile) {
  const int64_t tiles = (rows + kRowTile - 1) / kRowTile;
  return rows * tile / tiles;
}

// Where the sums of a tile go: to `sums` until the last block of k is done, then to y.
struct Target {
  const LinearPart* part;
  int64_t row, column;  // of y
  float* sums;          // [M][V * kLanes]
  bool first, last;
};

// The first `left` of a row's columns, at the right edge of y. Once, and not in each tile: vectors and unrolled copies
// of this loop would be most of the code of a tile.
static __attribute__((noinline)) void write_edge(const LinearPart& part, int64_t column, const float* values,
                                                 int64_t left, float* y) {
  for (int64_t i = 0; i < left; ++i) {
    float value = values[i];
    if (part.bias != nullptr) value = value + part.bias[column + i];
    if (part.accumulate) value = value + y[i];
    y[i] = value;
  }
}

template <int V>
static inline __attribute__((always_inline)) void write_row(const Target& target, int64_t m, LV (&values)[V]) {
  const LinearPart& part = *target.part;
  const int64_t left = part.n - target.column;
  float* y = part.y + (target.row + m) * part.y_stride + target.column;
  if (left >= V * kLanes) {
    UNROLL for (int v = 0; v < V; ++v) {
      LV value = values[v];
      if (part.bias != nullptr) value = lv_add(value, lv_load(part.bias + target.column + v * kLanes));
      if (part.accumulate) value = lv_add(value, lv_load(y + v * kLanes));
      lv_store(y + v * kLanes, value);
    }
    return;
  }
  float row[V * kLanes];
  UNROLL for (int v = 0; v < V; ++v) lv_store(row + v * kLanes, values[v]);
  write_edge(part, target.column, row, left, y);
}

template <int M, int V>
static inline __attribute__((always_inline)) void close_block(const Target& target, LV (&acc)[M][V]) {
  UNROLL for (int m = 0; m < M; ++m) {
    float* sums = target.sums + m * V * kLanes;
    if (!target.first) {
      UNROLL for (int v = 0; v < V; ++v) acc[m][v] = lv_add(lv_load(sums + v * kLanes), acc[m][v]);
    }
    if (target.last) {
      write_row<V>(target, m, acc[m]);
    } else {
      UNROLL for (int v = 0; v < V; ++v) lv_store(sums + v * kLanes, acc[m][v]);
    }
  }
}
