// One block of key positions: where its rows lie in the pages, and how they come into scratch as f32, keys transposed.
// Included by kernels_<isa>.cc before attention_tile.inl.

constexpr int64_t kBlock = kAttentionBlockKeys;
constexpr int64_t kBlockVectors = kBlock / kWidth;
constexpr int kValueVectors = 2;
constexpr int64_t kValuePanel = kValueVectors * kWidth;  // columns of values that lie together in load_rows

// The rows of one block, position by position. Entries outside [begin, end) are rows of zeros with scale 0, so that
// nothing invisible is read.
struct Block {
  int64_t first;  // position of entry 0
  int64_t begin, end;
  const char* k[kBlock];
  const char* v[kBlock];
  float k_scale[kBlock];  // of kI8 alone
  float v_scale[kBlock];
};

alignas(64) static const char kZeroRow[kAttentionMaxHeadDim * 4] = {};

// ---- how a stored element is read: all that depends on the dtype ----------------------------------------------------

template <KvKind kind>
static inline int64_t kv_bytes(int64_t count) {
  return kind == KvKind::kF32 ? 4 * count : kind == KvKind::kI8 ? count : 2 * count;
}

// kWidth elements, widened exactly. (kI8: without the scale.)
template <KvKind kind>
static inline V load_kv(const char* p) {
  if constexpr (kind == KvKind::kI8) return load_int8(p);
  if constexpr (kind == KvKind::kF16) return load_weights<WeightKind::kF16>(p);
  if constexpr (kind == KvKind::kBF16) return load_weights<WeightKind::kBF16>(p);
  return load_weights<WeightKind::kF32>(p);
}

// The first n, 0 < n < kWidth; the others are +0 and their memory is not touched.
template <KvKind kind>
static inline V load_kv_partial(const char* p, int64_t n) {
  char padded[4 * kWidth] = {};
  __builtin_memcpy(padded, p, static_cast<uint64_t>(kv_bytes<kind>(n)));
  return load_kv<kind>(padded);
}

// ---- finding and fetching -------------------------------------------------------------------------------------------

// The block of positions first .. first + kBlock - 1, of which [from, to) are to be read.
template <KvKind kind>
static void locate_block(const AttentionPart& part, int64_t first, int64_t from, int64_t to, Block& block) {
  block.first = first;
  block.begin = from > first ? from - first : 0;
  block.end = to < first + kBlock ? to - first : kBlock;
  const int64_t row_bytes = kv_bytes<kind>(part.head_dim);
  const int64_t head_bytes = part.page_size * (row_bytes + (kind == KvKind::kI8 ? 4 : 0));
  int64_t page = (first + block.begin) / part.page_size;
  int64_t slot = (first + block.begin) % part.page_size;
  for (int64_t j = block.begin; j < block.end; ++page, slot = 0) {
    const int64_t head = part.pages[page] * part.page_stride_bytes + part.kv_head * head_bytes;
    for (; slot < part.page_size && j < block.end; ++slot, ++j) {
      block.k[j] = part.k + head + slot * row_bytes;
      block.v[j] = part.v + head + slot * row_bytes;
      if constexpr (kind == KvKind::kI8) {
        const int64_t scale = head + part.page_size * row_bytes + slot * 4;
        __builtin_memcpy(&block.k_scale[j], part.k + scale, 4);
        __builtin_memcpy(&block.v_scale[j], part.v + scale, 4);
      }
    }
  }
  for (int64_t j = 0; j < kBlock; ++j) {
    if (j >= block.begin && j < block.end) continue;
    block.k[j] = block.v[j] = kZeroRow;
    block.k_scale[j] = block.v_scale[j] = 0.0f;
  }
}

// ---- into scratch ---------------------------------------------------------------------------------------------------

template <KvKind kind>
static inline void store_units(const V (&units)[4], int64_t count, float* to) {
  constexpr int kPerUnit = kind == KvKind::kF32 ? 1 : kind == KvKind::kI8 ? 4 : 2;
  UNROLL for (int u = 0; u < 4; ++u) {
    float* at = to + u * kPerUnit * kWidth;
    const int64_t left = count - u * kPerUnit;
    if (left > 0) store(at, widen_unit<kind, 0>(units[u]));
    if constexpr (kPerUnit > 1) {
      if (left > 1) store(at + kWidth, widen_unit<kind, 1>(units[u]));
    }
    if constexpr (kPerUnit > 2) {
      if (left > 2) store(at + 2 * kWidth, widen_unit<kind, 2>(units[u]));
      if (left > 3) store(at + 3 * kWidth, widen_unit<kind, 3>(units[u]));
    }
  }
}

// As transpose_rows, for less than 16 bytes from element d to the end.
template <KvKind kind>
static inline void transpose_tail(const char* const* rows, int64_t d, int64_t dim, V (&units)[4]) {
  char padded[kWidth][16] = {};
  const char* pointers[kWidth];
  for (int64_t l = 0; l < kWidth; ++l) {
    __builtin_memcpy(padded[l], rows[l] + kv_bytes<kind>(d), static_cast<uint64_t>(kv_bytes<kind>(dim - d)));
    pointers[l] = padded[l];
  }
  transpose_rows(pointers, 0, units);
}

// to[d * kWidth + l] = element d of rows[l].
template <KvKind kind>
static void pack_keys(const char* const* rows, int64_t dim, float* to) {
  constexpr int64_t kStep = kind == KvKind::kF32 ? 4 : kind == KvKind::kI8 ? 16 : 8;  // elements in 16 bytes
  V units[4];
  int64_t d = 0;
  for (; d + kStep <= dim; d += kStep) {
    transpose_rows(rows, kv_bytes<kind>(d), units);
    store_units<kind>(units, kStep, to + d * kWidth);
  }
  if (d == dim) return;
  transpose_tail<kind>(rows, d, dim, units);
  store_units<kind>(units, dim - d, to + d * kWidth);
}

// A row of values, filled up with zeros to whole vectors.
template <KvKind kind>
static inline void widen_values(const char* row, int64_t dim, float* to) {
  int64_t d = 0;
  for (; d + kWidth <= dim; d += kWidth) store(to + d, load_kv<kind>(row + kv_bytes<kind>(d)));
  if (d < dim) store(to + d, load_kv_partial<kind>(row + kv_bytes<kind>(d), dim - d));
}

// keys: kBlockVectors panels of dim * kWidth floats; values: kBlock rows of `padded` floats. Only what [begin, end)
// touches is written.
template <KvKind kind>
static void load_block(const Block& block, int64_t dim, int64_t padded, float* keys, float* values) {
  for (int64_t j = block.begin / kWidth * kWidth; j < block.end; j += kWidth) {
    pack_keys<kind>(block.k + j, dim, keys + j * dim);
  }
  for (int64_t j = block.begin; j < block.end; ++j) {
    widen_values<kind>(block.v[j], dim, values + j * padded);
  }
}

// A row filled up with zeros to whole vectors, each kValuePanel elements `step` floats behind those before.
template <KvKind kind>
static inline void widen_row(const char* row, int64_t dim, int64_t step, float* to) {
  for (int64_t begin = 0; begin < dim; begin += kValuePanel, to += step) {
    UNROLL for (int v = 0; v < kValueVectors; ++v) {
      const int64_t d = begin + v * kWidth, left = dim - d;
      if (left >= kWidth) {
        store(to + v * kWidth, load_kv<kind>(row + kv_bytes<kind>(d)));
      } else if (left > 0) {
        store(to + v * kWidth, load_kv_partial<kind>(row + kv_bytes<kind>(d), left));
      }
    }
  }
}

// For attention_lanes.inl: keys as kBlock rows of `padded` floats; values in panels of kValuePanel columns, row behind
// row. Only what [begin, end) touches is written.
template <KvKind kind>
static void load_rows(const Block& block, int64_t dim, int64_t padded, float* keys, float* values) {
  for (int64_t j = block.begin; j < block.end; ++j) {
    widen_row<kind>(block.k[j], dim, kValuePanel, keys + j * padded);
  }
  for (int64_t j = block.begin; j < block.end; ++j) {
    widen_row<kind>(block.v[j], dim, kBlock * kValuePanel, values + j * kValuePanel);
  }
}
