// Paged causal attention with an online softmax over fixed blocks of key positions (Milakov and Gimelshein,
// "Online normalizer calculation for softmax", 2018; Dao et al., "FlashAttention", 2022), in fixed ranges of blocks
// that may be computed apart. Blocks and ranges are aligned to position 0, so a query at position p meets the same
// blocks in the same order whether it is a decode row or one of many rows of a prefill, and whichever thread
// computes its ranges. Included by kernels_<isa>.cc after attention_tile.inl.

// The sum over the ranges so far of one query: acc and sum belong to e^(score - maximum). sum 0 where there was none.
struct Total {
  float* acc;  // [padded]
  float* maximum;
  float* sum;
};

// total += the range's own (acc, maximum, sum). A range of which the query sees nothing, sum 0, changes no bit.
static inline void add_range(Total total, const float* acc, float maximum, float sum_of_range, int64_t padded) {
  if (sum_of_range == 0.0f) return;
  if (*total.sum == 0.0f) {
    for (int64_t d = 0; d < padded; d += kWidth) store(total.acc + d, load(acc + d));
    *total.maximum = maximum;
    *total.sum = sum_of_range;
    return;
  }
  const float raised = maximum > *total.maximum ? maximum : *total.maximum;
  const float old_factor = exp_one(*total.maximum - raised);
  const float new_factor = exp_one(maximum - raised);
  const V old_factors = set1(old_factor);
  const V new_factors = set1(new_factor);
  for (int64_t d = 0; d < padded; d += kWidth) {
    store(total.acc + d, add(mul(load(total.acc + d), old_factors), mul(load(acc + d), new_factors)));
  }
  *total.maximum = raised;
  *total.sum = *total.sum * old_factor + sum_of_range * new_factor;
}

// out = acc / sum.
static inline void write_out(const float* acc, float sum_of_all, int64_t dim, float* out) {
  const V divisor = set1(sum_of_all);
  int64_t d = 0;
  for (; d + kWidth <= dim; d += kWidth) store(out + d, div(load(acc + d), divisor));
  if (d < dim) store_partial(out + d, div(load(acc + d), divisor), dim - d);
}

// ---- one part -------------------------------------------------------------------------------------------------------

static inline int64_t padded_to_vectors(int64_t count) { return (count + kWidth - 1) / kWidth * kWidth; }

// Row and head of query i of a part.
static inline const AttentionRow& query_row(const AttentionPart& part, int64_t i) {
  return part.rows[i / (part.head_end - part.head_begin)];
}
static inline int64_t query_head(const AttentionPart& part, int64_t i) {
  return part.head_begin + i % (part.head_end - part.head_begin);
}

struct Part {
  Queries w;
  float* keys;
  float* values;
  float* total_acc;
  float* total_maximum;
  float* total_sum;
  int64_t position[kAttentionQueries];
};

static inline void begin_range(Part& p) {
  for (int64_t i = 0; i < p.w.count; ++i) p.w.maximum[i] = kMinusInfinity;
  for (int64_t i = 0; i < p.w.count * kWidth; i += kWidth) store(p.w.sums + i, zero());
  for (int64_t i = 0; i < p.w.count * p.w.padded; i += kWidth) store(p.w.acc + i, zero());
}

// The sums of query i over one slot's keys.
static inline void leave_partial(const AttentionPart& part, int64_t i, int64_t slot, const float* acc, float maximum,
                                 float sum_of_slot) {
  const AttentionRow& row = query_row(part, i);
  float* to = part.partials + row.partials + (query_head(part, i) * row.slots + slot) * kAttentionPartial;
  for (int64_t d = 0; d < padded_to_vectors(part.head_dim); d += kWidth) store(to + d, load(acc + d));
  to[kAttentionMaxHeadDim] = maximum;
  to[kAttentionMaxHeadDim + 1] = sum_of_slot;
}

// `range` is over: the part that begins with the first keys adds it to the total, later ones leave it as it is.
static inline void end_range(const AttentionPart& part, Part& p, int64_t range) {
  for (int64_t i = 0; i < p.w.count; ++i) {
    const float* acc = p.w.acc + i * p.w.padded;
    const float sum_of_range = sum(load(p.w.sums + i * kWidth));
    const int64_t later = query_row(part, i).later;
    if (range >= later) {
      leave_partial(part, i, range - later + 1, acc, p.w.maximum[i], sum_of_range);
    } else {
      add_range({p.total_acc + i * p.w.padded, p.total_maximum + i, p.total_sum + i}, acc, p.w.maximum[i], sum_of_range,
                p.w.padded);
    }
  }
}

// What is left to do with the totals.
static inline void end_part(const AttentionPart& part, const Part& p) {
  for (int64_t i = 0; i < p.w.count; ++i) {
    const AttentionRow& row = query_row(part, i);
    const float* acc = p.total_acc + i * p.w.padded;
    if (row.partials < 0) {
      write_out(acc, p.total_sum[i], part.head_dim,
                part.out + row.row * part.out_stride + query_head(part, i) * part.head_dim);
    } else if (part.key_begin < row.later * kAttentionRangeKeys) {
      leave_partial(part, i, 0, acc, p.total_maximum[i], p.total_sum[i]);
    }
  }
}

// Lays the scratch out and packs the queries.
static inline void begin_part(const AttentionPart& part, Part& p) {
  const int64_t count = part.row_count * (part.head_end - part.head_begin);
  const int64_t padded = padded_to_vectors(part.head_dim);
  float* next = part.scratch;
  const auto take = [&](int64_t floats) {
    float* at = next;
    next += (floats + 15) / 16 * 16;
    return at;
  };
  float* q = take(count * part.head_dim);
  p.keys = take(kBlock * part.head_dim);
  p.values = take(kBlock * padded);
  p.w = {count,
         part.head_dim,
         padded,
         p.position,
         q,
         take(count * padded),
         take(count),
         take(count * kWidth),
         p.keys,
         p.values,
         take(kTile * kBlock)};
  p.total_acc = take(count * padded);
  p.total_maximum = take(count);
  p.total_sum = take(count);
  for (int64_t i = 0; i < count; ++i) {
    p.position[i] = query_row(part, i).position;
    p.total_sum[i] = 0.0f;
    const float* from = part.q + query_row(part, i).row * part.q_stride + query_head(part, i) * part.head_dim;
    const int64_t tile = i / kTile * kTile;
    const int64_t height = count - tile < kTile ? count - tile : kTile;
    for (int64_t d = 0; d < part.head_dim; ++d) q[tile * part.head_dim + d * height + (i - tile)] = from[d];
  }
}

template <KvKind kind>
static void attend_part(const AttentionPart& part) {
  Part p = {};
  begin_part(part, p);
  int64_t oldest = p.position[0];
  int64_t newest = p.position[0];
  for (int64_t i = 1; i < p.w.count; ++i) {
    if (p.position[i] < oldest) oldest = p.position[i];
    if (p.position[i] > newest) newest = p.position[i];
  }
  int64_t from = part.window > 0 ? oldest - part.window + 1 : 0;
  if (from < part.key_begin) from = part.key_begin;
  const int64_t to = newest + 1 < part.key_end ? newest + 1 : part.key_end;
  Block blocks[2];
  int64_t first = from / kBlock * kBlock;
  locate_block<kind>(part, first, from, to, blocks[0]);
  begin_range(p);
  for (int64_t turn = 0; first < to; first += kBlock, turn ^= 1) {
    if (first % kAttentionRangeKeys == 0 && first > from) {
      end_range(part, p, first / kAttentionRangeKeys - 1);
      begin_range(p);
    }
    const Block& block = blocks[turn];
    const bool more = first + kBlock < to;
    if (more) locate_block<kind>(part, first + kBlock, from, to, blocks[turn ^ 1]);
    if (p.w.count <= kDirectQueries) {
      const Walk walk{&block, more ? &blocks[turn ^ 1] : nullptr, kv_bytes<kind>(part.head_dim)};
      run_direct_of<kind, kDirectQueries>(part, walk, p.w);
      continue;
    }
    load_block<kind>(block, part.head_dim, p.w.padded, p.keys, p.values);
    const Walk ahead{&blocks[turn ^ 1], nullptr, kv_bytes<kind>(part.head_dim)};
    const int64_t share = 2 * kBlock * kTile / p.w.count + 1;  // rows of the next block to ask for with each tile
    int64_t asked = more ? 0 : 2 * kBlock;
    for (int64_t query = 0; query < p.w.count; query += kTile) {
      for (int64_t i = 0; i < share && asked < 2 * kBlock; ++i) fetch_row(ahead, asked++);
      run_tile_of<kTile>(p.w.count - query, part, block, p.w, query);
    }
  }
  end_range(part, p, (to - 1) / kAttentionRangeKeys);
  end_part(part, p);
}

static void attention(const AttentionPart& part) {
  switch (part.kind) {
    case KvKind::kF32:
      return attend_part<KvKind::kF32>(part);
    case KvKind::kF16:
      return attend_part<KvKind::kF16>(part);
    case KvKind::kBF16:
      return attend_part<KvKind::kBF16>(part);
    case KvKind::kI8:
      return attend_part<KvKind::kI8>(part);
  }
}

// The sums of one query that was computed in several parts, in ascending order of their keys, as end_range would have
// met them.
static void merge_partials(const float* partials, int64_t slots, int64_t head_dim, float* out) {
  alignas(64) float acc[kAttentionMaxHeadDim];
  float maximum = kMinusInfinity;
  float sum_of_all = 0.0f;
  for (int64_t slot = 0; slot < slots; ++slot) {
    const float* one = partials + slot * kAttentionPartial;
    add_range({acc, &maximum, &sum_of_all}, one, one[kAttentionMaxHeadDim], one[kAttentionMaxHeadDim + 1],
              padded_to_vectors(head_dim));
  }
  write_out(acc, sum_of_all, head_dim, out);
}
