// Paged causal attention with an online softmax over fixed blocks of key positions (Milakov and Gimelshein,
// "Online normalizer calculation for softmax", 2018; Dao et al., "FlashAttention", 2022), in fixed ranges of blocks
// that may be computed apart. Blocks and ranges are aligned to position 0, so a query at position p meets the same
// blocks in the same order whether it is a decode row or one of many rows of a prefill, and whichever thread
// computes its ranges. Included by kernels_<isa>.cc after attention_values.inl.

// The sum over the ranges so far of one query: acc and sum belong to e^(score - maximum). sum 0 where there was none.
struct Total {
  float* acc;  // [padded]
  float* maximum;
  float* sum;
};

// What e^score counts where maxima meet: of the total and of what is added to it.
struct Factors {
  float raised, old_factor, new_factor;
};

// total += the range's own (acc, sum). A range of which the query sees nothing, sum 0, changes no bit.
static inline void add_range(Total total, const float* acc, float maximum, float sum_of_range, const Factors& factors,
                             int64_t padded) {
  if (sum_of_range == 0.0f) return;
  if (*total.sum == 0.0f) {
    for (int64_t d = 0; d < padded; d += kWidth) store(total.acc + d, load(acc + d));
    *total.maximum = maximum;
    *total.sum = sum_of_range;
    return;
  }
  const V old_factors = set1(factors.old_factor);
  const V new_factors = set1(factors.new_factor);
  for (int64_t d = 0; d < padded; d += kWidth) {
    store(total.acc + d, add(mul(load(total.acc + d), old_factors), mul(load(acc + d), new_factors)));
  }
  *total.maximum = factors.raised;
  *total.sum = *total.sum * factors.old_factor + sum_of_range * factors.new_factor;
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
  int64_t oldest[kAttentionQueries / kGroup + 1];
  bool lanes;  // each query takes a lane: attention_lanes.inl
};

static inline void begin_range(Part& p) {
  for (int64_t i = 0; i < p.w.padded_count; i += kWidth) store(p.w.maximum + i, set1(kMinusInfinity));
  for (int64_t i = 0; i < p.w.padded_count * kWidth; i += kWidth) store(p.w.sums + i, zero());
  if (p.lanes) return;  // the range's first block makes them
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

// The kWidth sums of each of kWidth queries, as sum() adds them.
static inline V sum_across(const float* sums, int64_t stride) {
  V parts[8];
  UNROLL for (int l = 0; l < 8; ++l) {
    parts[l] = load(sums + l * stride);
    if constexpr (kWidth == 16) parts[l] = add(parts[l], load(sums + (l + 8) * stride));
  }
  const V low = add(add(parts[0], parts[1]), add(parts[2], parts[3]));
  return add(low, add(add(parts[4], parts[5]), add(parts[6], parts[7])));
}

// `range` is over: the part that begins with the first keys adds it to the total, later ones leave it as it is.
static inline void end_range(const AttentionPart& part, Part& p, int64_t range) {
  alignas(64) float sums[kAttentionQueries], raised[kAttentionQueries];
  alignas(64) float old_factor[kAttentionQueries], new_factor[kAttentionQueries];
  for (int64_t i = 0; i < p.w.padded_count; i += kWidth) {
    if (p.lanes) store(sums + i, sum_across(p.w.sums + i, p.w.padded_count));
    const V before = load(p.total_maximum + i), now = load(p.w.maximum + i), top = max(now, before);
    store(raised + i, top);
    store(old_factor + i, exp(sub(before, top)));
    store(new_factor + i, exp(sub(now, top)));
  }
  for (int64_t i = 0; i < p.w.count; ++i) {
    const float* acc = p.w.acc + i * p.w.padded;
    if (!p.lanes) sums[i] = sum(load(p.w.sums + i * kWidth));
    const int64_t later = query_row(part, i).later;
    if (range >= later) {
      leave_partial(part, i, range - later + 1, acc, p.w.maximum[i], sums[i]);
    } else {
      add_range({p.total_acc + i * p.w.padded, p.total_maximum + i, p.total_sum + i}, acc, p.w.maximum[i], sums[i],
                {raised[i], old_factor[i], new_factor[i]}, p.w.padded);
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

// Queries as attention_lanes.inl or the other two want them.
static inline void pack_queries(const AttentionPart& part, const Part& p, float* q) {
  const auto from = [&](int64_t i) {
    return part.q + query_row(part, i).row * part.q_stride + query_head(part, i) * part.head_dim;
  };
  for (int64_t i = 0; i < p.w.count && !p.lanes; ++i) {
    const int64_t tile = i / kTile * kTile;
    const int64_t height = p.w.count - tile < kTile ? p.w.count - tile : kTile;
    for (int64_t d = 0; d < part.head_dim; ++d) q[tile * part.head_dim + d * height + (i - tile)] = from(i)[d];
  }
  if (!p.lanes) return;
  for (int64_t i = 0; i < p.w.padded_count; i += kWidth) {
    const char* rows[kWidth];
    for (int64_t l = 0; l < kWidth; ++l) {
      rows[l] = i + l < p.w.count ? reinterpret_cast<const char*>(from(i + l)) : kZeroRow;
    }
    pack_keys<KvKind::kF32>(rows, part.head_dim, q + i * part.head_dim);
  }
}

// What begin_part lays out at most: each array begins at 64 bytes.
static_assert(kAttentionQueries % kWidth == 0 && kAttentionMaxHeadDim % kValuePanel == 0);
static_assert(3 * kAttentionQueries * kAttentionMaxHeadDim + 2 * kBlock * kAttentionMaxHeadDim +
                  kAttentionQueries * (kWidth + 3) + kBlock * (kGroup > kTile ? kGroup : kTile) + 10 * 15 <=
              kAttentionScratch);

// Lays the scratch out and packs the queries.
static inline void begin_part(const AttentionPart& part, Part& p) {
  const int64_t count = part.row_count * (part.head_end - part.head_begin);
  const int64_t padded = padded_to_vectors(part.head_dim), padded_count = padded_to_vectors(count);
  float* next = part.scratch;
  const auto take = [&](int64_t floats) {
    float* at = next;
    next += (floats + 15) / 16 * 16;
    return at;
  };
  float* q = take(padded_count * part.head_dim);
  p.keys = take(kBlock * padded);
  p.values = take(kBlock * ((padded + kValuePanel - 1) / kValuePanel * kValuePanel));
  p.lanes = count >= kLaneQueries;
  p.w = {.count = count,
         .dim = part.head_dim,
         .padded = padded,
         .position = p.position,
         .q = q,
         .acc = take(count * padded),
         .maximum = take(padded_count),
         .sums = take(padded_count * kWidth),
         .keys = p.keys,
         .values = p.values,
         .scores = take(kBlock * (kGroup > kTile ? kGroup : kTile)),
         .padded_count = padded_count,
         .oldest = p.oldest};
  p.total_acc = take(count * padded);
  p.total_maximum = take(padded_count);
  p.total_sum = take(count);
  for (int64_t i = 0; i < padded_count; i += kWidth) store(p.total_maximum + i, set1(kMinusInfinity));
  for (int64_t i = 0; i < count; ++i) {
    p.position[i] = query_row(part, i).position;
    p.total_sum[i] = 0.0f;
    int64_t& oldest = p.oldest[i / kGroup];
    if (i % kGroup == 0 || p.position[i] < oldest) oldest = p.position[i];
  }
  pack_queries(part, p, q);
}

template <KvKind kind>
static void run_lanes(const AttentionPart& part, const Block& block, const Part& p, NextRows next, bool fresh) {
  load_rows<kind>(block, part.head_dim, p.w.padded, p.keys, p.values);
  next.share = 2 * kGroupKeys * kGroup / p.w.count + 1;
  for (int64_t query = 0; query < p.w.count; query += kGroup) run_queries(part, block, p.w, query, fresh, next);
}

template <KvKind kind>
static void run_tiles(const AttentionPart& part, const Block& block, const Part& p, NextRows next) {
  load_block<kind>(block, part.head_dim, p.w.padded, p.keys, p.values);
  next.share = 2 * kBlock * kTile / p.w.count + 1;
  for (int64_t query = 0; query < p.w.count; query += kTile) {
    next.ask();
    run_tile_of<kTile>(p.w.count - query, part, block, p.w, query);
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
  bool fresh = true;
  for (int64_t turn = 0; first < to; first += kBlock, turn ^= 1, fresh = false) {
    if (first % kAttentionRangeKeys == 0 && first > from) {
      end_range(part, p, first / kAttentionRangeKeys - 1);
      begin_range(p);
      fresh = true;
    }
    const Block& block = blocks[turn];
    const bool more = first + kBlock < to;
    if (more) locate_block<kind>(part, first + kBlock, from, to, blocks[turn ^ 1]);
    if (p.w.count <= kDirectQueries) {
      const Walk walk{&block, more ? &blocks[turn ^ 1] : nullptr, kv_bytes<kind>(part.head_dim)};
      run_direct_of<kind, kDirectQueries>(part, walk, p.w);
      continue;
    }
    const Walk ahead{&blocks[turn ^ 1], nullptr, kv_bytes<kind>(part.head_dim)};
    const NextRows next{ahead, 0, more ? 2 * kBlock : 0};
    if constexpr (kLaneQueries <= kAttentionQueries) {
      if (p.lanes) {
        run_lanes<kind>(part, block, p, next, fresh);
        continue;
      }
    }
    run_tiles<kind>(part, block, p, next);
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
    const float now = one[kAttentionMaxHeadDim];
    const float top = now > maximum ? now : maximum;
    add_range({acc, &maximum, &sum_of_all}, one, now, one[kAttentionMaxHeadDim + 1],
              {top, exp_one(maximum - top), exp_one(now - top)}, padded_to_vectors(head_dim));
  }
  write_out(acc, sum_of_all, head_dim, out);
}
