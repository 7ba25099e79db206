// Paged causal attention with an online softmax over fixed blocks of key positions (Milakov and Gimelshein,
// "Online normalizer calculation for softmax", 2018). Blocks are aligned to position 0, so a query at position p meets
// the same blocks in the same order whether it is a decode row or one of many rows of a prefill.
// Included by kernels_<isa>.cc after elementwise.inl.

constexpr int64_t kBlock = 32;  // ops.h: kAttentionBlock
constexpr float kMinusInfinity = -__builtin_inff();

// One query row and head, between blocks. The accumulator of head_dim floats lies in scratch.
struct Query {
  const float* q;
  float* out;
  float* acc;
  int64_t position;
  float maximum;
  float sum;
};

// The keys and values of one block, position by position; entries outside [begin, end) are not set.
struct Block {
  int64_t first;  // position of entry 0
  int64_t begin, end;
  const char* k[kBlock];
  const char* v[kBlock];
  float k_scale[kBlock];  // of kI8 alone
  float v_scale[kBlock];
};

// ---- how a stored element is read: all that depends on the dtype ----------------------------------------------------

template <KvKind kind>
static inline int64_t kv_bytes(int64_t count) {
  return kind == KvKind::kF32 ? 4 * count : kind == KvKind::kI8 ? count : 2 * count;
}

// Eight elements, widened exactly. (kI8: without the scale.)
template <KvKind kind>
static inline V8 load_kv(const char* p) {
  if constexpr (kind == KvKind::kI8) return load_int8(p);
  if constexpr (kind == KvKind::kF16) return load_weights<WeightKind::kF16>(p);
  if constexpr (kind == KvKind::kBF16) return load_weights<WeightKind::kBF16>(p);
  return load_weights<WeightKind::kF32>(p);
}

// The first n, 0 < n < 8; the others are +0 and their memory is not touched.
template <KvKind kind>
static inline V8 load_kv_partial(const char* p, int64_t n) {
  if constexpr (kind == KvKind::kF32) return load_partial(reinterpret_cast<const float*>(p), n);
  char padded[16] = {};
  __builtin_memcpy(padded, p, static_cast<uint64_t>(kv_bytes<kind>(n)));
  return load_kv<kind>(padded);
}

template <KvKind kind>
static void locate_block(const AttentionPart& part, int64_t first, int64_t from, int64_t to, Block& block) {
  block.first = first;
  block.begin = from > first ? from - first : 0;
  block.end = to < first + kBlock ? to - first : kBlock;
  const int64_t row_bytes = kv_bytes<kind>(part.head_dim);
  const int64_t head_bytes = part.page_size * (row_bytes + (kind == KvKind::kI8 ? 4 : 0));
  for (int64_t j = block.begin; j < block.end; ++j) {
    const int64_t position = first + j;
    const int64_t page = part.pages[position / part.page_size];
    const int64_t slot = position % part.page_size;
    const int64_t head = page * part.page_stride_bytes + part.kv_head * head_bytes;
    block.k[j] = part.k + head + slot * row_bytes;
    block.v[j] = part.v + head + slot * row_bytes;
    if constexpr (kind == KvKind::kI8) {
      const int64_t scale = head + part.page_size * row_bytes + slot * 4;
      __builtin_memcpy(&block.k_scale[j], part.k + scale, 4);
      __builtin_memcpy(&block.v_scale[j], part.v + scale, 4);
    }
  }
}

// ---- the sums -------------------------------------------------------------------------------------------------------

// scores[0..4) = q . keys[0..4): the order of linear.
template <KvKind kind>
static inline void dot4(const float* q, const char* const* keys, int64_t dim, float* scores) {
  V8 acc[4] = {zero(), zero(), zero(), zero()};
  int64_t i = 0;
  for (; i + 8 <= dim; i += 8) {
    const V8 qv = load(q + i);
    UNROLL for (int j = 0; j < 4; ++j) acc[j] = fma(qv, load_kv<kind>(keys[j] + kv_bytes<kind>(i)), acc[j]);
  }
  if (i < dim) {
    const V8 qv = load_partial(q + i, dim - i);
    UNROLL for (int j = 0; j < 4; ++j) {
      acc[j] = fma(qv, load_kv_partial<kind>(keys[j] + kv_bytes<kind>(i), dim - i), acc[j]);
    }
  }
  sum4(acc[0], acc[1], acc[2], acc[3], scores);
}

// acc[0..8 N) = acc * correction + sum over j of p[j] v[j], ascending j.
template <KvKind kind, int N>
static inline void add_values(const float* p, const char* const* v, int64_t offset, int64_t begin, int64_t end,
                              V8 correction, float* acc) {
  V8 sums[N];
  UNROLL for (int i = 0; i < N; ++i) sums[i] = mul(load(acc + offset + 8 * i), correction);
  for (int64_t j = begin; j < end; ++j) {
    const V8 weight = set1(p[j]);
    const char* row = v[j] + kv_bytes<kind>(offset);
    UNROLL for (int i = 0; i < N; ++i) sums[i] = fma(weight, load_kv<kind>(row + kv_bytes<kind>(8 * i)), sums[i]);
  }
  UNROLL for (int i = 0; i < N; ++i) store(acc + offset + 8 * i, sums[i]);
}

template <KvKind kind>
static inline void add_values_partial(const float* p, const char* const* v, int64_t offset, int64_t count,
                                      int64_t begin, int64_t end, V8 correction, float* acc) {
  V8 sums = mul(load_partial(acc + offset, count), correction);
  for (int64_t j = begin; j < end; ++j) {
    sums = fma(set1(p[j]), load_kv_partial<kind>(v[j] + kv_bytes<kind>(offset), count), sums);
  }
  store_partial(acc + offset, sums, count);
}

template <KvKind kind>
static void add_block(const AttentionPart& part, const Block& block, Query& query) {
  int64_t begin = block.begin;
  const int64_t visible = query.position + 1 - block.first;  // entries at or before the query's own position
  const int64_t end = visible < block.end ? visible : block.end;
  if (part.window > 0) {
    const int64_t oldest = query.position - part.window + 1 - block.first;
    if (oldest > begin) begin = oldest;
  }
  if (begin >= end) return;

  float scores[kBlock];
  for (int64_t j = 0; j < kBlock; ++j) scores[j] = kMinusInfinity;
  for (int64_t j = begin; j < end; j += 4) {
    const char* keys[4];
    float four[4];
    for (int64_t i = 0; i < 4; ++i) keys[i] = block.k[j + i < end ? j + i : end - 1];
    dot4<kind>(query.q, keys, part.head_dim, four);
    for (int64_t i = 0; i < 4 && j + i < end; ++i) {
      if constexpr (kind == KvKind::kI8) four[i] = four[i] * block.k_scale[j + i];
      scores[j + i] = four[i] * part.scale;
    }
  }

  float maximum = query.maximum;
  for (int64_t j = begin; j < end; ++j) maximum = scores[j] > maximum ? scores[j] : maximum;
  const float correction = exp_one(query.maximum - maximum);  // 0 for the first block: e^-infinity
  V8 p[4];
  UNROLL for (int i = 0; i < 4; ++i) {
    p[i] = exp(sub(load(scores + 8 * i), set1(maximum)));
    store(scores + 8 * i, p[i]);
  }
  query.sum = query.sum * correction + sum(add(add(p[0], p[1]), add(p[2], p[3])));
  query.maximum = maximum;
  if constexpr (kind == KvKind::kI8) {
    for (int64_t j = begin; j < end; ++j) scores[j] = scores[j] * block.v_scale[j];
  }

  const V8 factor = set1(correction);
  int64_t d = 0;
  for (; d + 64 <= part.head_dim; d += 64) add_values<kind, 8>(scores, block.v, d, begin, end, factor, query.acc);
  for (; d + 32 <= part.head_dim; d += 32) add_values<kind, 4>(scores, block.v, d, begin, end, factor, query.acc);
  for (; d + 8 <= part.head_dim; d += 8) add_values<kind, 1>(scores, block.v, d, begin, end, factor, query.acc);
  if (d < part.head_dim) {
    add_values_partial<kind>(scores, block.v, d, part.head_dim - d, begin, end, factor, query.acc);
  }
}

// At most kAttentionQueries queries: (row_end - row_begin) * group.
template <KvKind kind>
static void attend_queries(const AttentionPart& part, int64_t row_begin, int64_t row_end, int64_t head_begin,
                           int64_t head_end) {
  Query queries[kAttentionQueries];
  int64_t count = 0;
  for (int64_t row = row_begin; row < row_end; ++row) {
    for (int64_t head = head_begin; head < head_end; ++head) {
      float* acc = part.scratch + count * part.head_dim;
      for (int64_t d = 0; d < part.head_dim; ++d) acc[d] = 0.0f;
      queries[count++] = {part.q + row * part.q_stride + head * part.head_dim,
                          part.out + row * part.out_stride + head * part.head_dim,
                          acc,
                          part.position + (row - part.row_begin),
                          kMinusInfinity,
                          0.0f};
    }
  }
  int64_t oldest = part.window > 0 ? queries[0].position - part.window + 1 : 0;
  if (oldest < 0) oldest = 0;
  const int64_t length = queries[count - 1].position + 1;
  Block block;
  for (int64_t first = oldest / kBlock * kBlock; first < length; first += kBlock) {
    locate_block<kind>(part, first, oldest, length, block);
    for (int64_t i = 0; i < count; ++i) add_block<kind>(part, block, queries[i]);
  }
  for (int64_t i = 0; i < count; ++i) {
    const V8 sum = set1(queries[i].sum);
    int64_t d = 0;
    for (; d + 8 <= part.head_dim; d += 8) store(queries[i].out + d, div(load(queries[i].acc + d), sum));
    const int64_t n = part.head_dim - d;
    if (n > 0) store_partial(queries[i].out + d, div(load_partial(queries[i].acc + d, n), sum), n);
  }
}

template <KvKind kind>
static void attend_all(const AttentionPart& part) {
  const int64_t heads = part.group < kAttentionQueries ? part.group : kAttentionQueries;
  const int64_t rows = kAttentionQueries / heads;
  const int64_t first_head = part.kv_head * part.group;
  for (int64_t row = part.row_begin; row < part.row_end; row += rows) {
    const int64_t row_end = row + rows < part.row_end ? row + rows : part.row_end;
    for (int64_t head = 0; head < part.group; head += heads) {
      const int64_t head_end = head + heads < part.group ? head + heads : part.group;
      attend_queries<kind>(part, row, row_end, first_head + head, first_head + head_end);
    }
  }
}

static void attention(const AttentionPart& part) {
  switch (part.kind) {
    case KvKind::kF32:
      return attend_all<KvKind::kF32>(part);
    case KvKind::kF16:
      return attend_all<KvKind::kF16>(part);
    case KvKind::kBF16:
      return attend_all<KvKind::kBF16>(part);
    case KvKind::kI8:
      return attend_all<KvKind::kI8>(part);
  }
}
