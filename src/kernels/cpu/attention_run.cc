#include "kernels/cpu/attention_run.h"

#include <algorithm>

namespace millrace::kernels {
namespace {

static_assert(kAttentionBlockKeys == kAttentionBlock && kAttentionRangeKeys == kAttentionRange);
static_assert(kAttentionMaxHeadDim == kMaxHeadDim && kAttentionRange % kAttentionBlock == 0);

// Below this amount of work a loop runs on the calling thread: waking a sleeping thread costs some microseconds.
constexpr int64_t kInlineProducts = 64 * 1024;
// A sequence with at most this many queries of a kv head shares what keys it can. With more of them, reading keys and
// values costs little beside the arithmetic.
constexpr int64_t kSharingQueries = 32;
constexpr int64_t kPartsPerThread = 8;
// What it costs to read a key and its value, in queries that are computed with them.
constexpr int64_t kReadCost = 4;

KvKind kv_kind(DType type) {
  if (type == DType::kF16) return KvKind::kF16;
  if (type == DType::kBF16) return KvKind::kBF16;
  return type == DType::kI8 ? KvKind::kI8 : KvKind::kF32;
}

}  // namespace

void AttentionRun::operator()(ConstRows q, const KvLayer& kv, std::span<const AttentionSequence> sequences,
                              const AttentionParams& params, Rows out) {
  begin(q, kv, params, out);
  int64_t products = 0;
  int64_t cost = 0;
  for (const AttentionSequence& s : sequences) {
    const int64_t keys = s.kv_length_before + s.row_count;
    products += s.row_count * keys * q.width;
    cost += kv_heads_ * keys * (kReadCost + s.row_count * group_);
  }
  const bool alone = products < kInlineProducts || pool_.size() == 1;  // then nothing is cut but for what is shared
  cost_of_part_ = alone ? cost : cost / (kPartsPerThread * pool_.size());
  for (const AttentionSequence& s : sequences) {
    if (s.row_count * heads_ <= kSharingQueries && params.window == 0) {
      tiles_.push_back(tile_of(s, 0, s.row_count));
    } else {
      cut_rows(s);
    }
  }
  cut_keys(tiles_, 0);
  if (static_cast<int64_t>(partials_.size()) < partials_used_)
    partials_.resize(static_cast<std::size_t>(partials_used_));
  run_parts(alone ? std::max<int64_t>(static_cast<int64_t>(parts_.size()), 1) : 1);
  merge();
}

void AttentionRun::begin(ConstRows q, const KvLayer& kv, const AttentionParams& params, Rows out) {
  common_ = {};
  common_.q = q.data;
  common_.q_stride = q.stride;
  common_.out = out.data;
  common_.out_stride = out.stride;
  common_.k = static_cast<const char*>(kv.k);
  common_.v = static_cast<const char*>(kv.v);
  common_.kind = kv_kind(kv.dtype);
  common_.page_size = kv.page_size;
  common_.page_stride_bytes = kv.page_stride_bytes;
  common_.head_dim = kv.head_dim;
  common_.window = params.window;
  common_.scale = params.scale;
  causal_ = params.causal;
  kv_heads_ = kv.kv_heads;
  group_ = params.heads / kv.kv_heads;
  heads_ = std::min(group_, kAttentionQueries);
  tiles_.clear();
  parts_.clear();
  first_row_.clear();
  rows_.clear();
  merged_.clear();
  partials_used_ = 0;
}

AttentionRun::QueryTile AttentionRun::tile_of(const AttentionSequence& s, int64_t row, int64_t row_count) const {
  const int64_t position = s.kv_length_before + (causal_ ? row : s.row_count - 1);
  const int64_t newest = causal_ ? position + row_count - 1 : position;
  const int64_t oldest = common_.window > 0 ? std::max<int64_t>(0, position - common_.window + 1) : 0;
  return {.pages = s.pages,
          .row = s.row_begin + row,
          .position = position,
          .row_count = row_count,
          .first = oldest / kAttentionRange,
          .ranges = newest / kAttentionRange + 1,
          .shareable = s.kv_length_before / kAttentionRange};
}

// Tiles that share no keys with other sequences.
void AttentionRun::cut_rows(const AttentionSequence& s) {
  int64_t rows = kAttentionQueries / heads_;
  // Shorter tiles where there would be too few for the threads to share evenly.
  const int64_t enough = kPartsPerThread * pool_.size();
  while (rows > 8 && (s.row_count + rows - 1) / rows * kv_heads_ < enough) rows /= 2;
  // The last rows see most keys: they go first, so that no thread is left with a long part at the end.
  for (int64_t row = (s.row_count + rows - 1) / rows * rows - rows; row >= 0; row -= rows) {
    QueryTile tile = tile_of(s, row, std::min(rows, s.row_count - row));
    add_parts({&tile, 1}, tile.first, tile.ranges);
  }
}

// Those that hold the keys of a range.
std::span<const int32_t> AttentionRun::pages_of(const QueryTile& tile, int64_t range) const {
  const int64_t first = range * kAttentionRange / common_.page_size;
  const int64_t last = ((range + 1) * kAttentionRange - 1) / common_.page_size;
  return tile.pages.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(last - first + 1));
}

bool AttentionRun::alike(std::span<const QueryTile> tiles, int64_t range) const {
  return std::all_of(tiles.begin(), tiles.end(), [&](const QueryTile& tile) {
    return tile.shareable > range && std::ranges::equal(pages_of(tile, range), pages_of(tiles[0], range));
  });
}

// Cuts the keys of these tiles, which have all keys below `range` in common, from there on. Each turn either parts
// them or comes to the end of one of them, so it goes no deeper than there are tiles.
void AttentionRun::cut_keys(std::span<QueryTile> tiles, int64_t range) {
  const auto by_pages = [&](const QueryTile& a, const QueryTile& b) {
    return std::ranges::lexicographical_compare(pages_of(a, range), pages_of(b, range));
  };
  const auto alone =
      std::partition(tiles.begin(), tiles.end(), [&](const QueryTile& p) { return p.shareable > range; });
  for (auto tile = alone; tile != tiles.end(); ++tile) add_parts({tile, 1}, range, tile->ranges);
  std::sort(tiles.begin(), alone, by_pages);
  for (auto first = tiles.begin(); first != alone;) {
    const auto last = std::upper_bound(first, alone, *first, by_pages);
    const std::span<QueryTile> same(first, last);
    first = last;
    if (same.size() == 1) {
      add_parts(same, range, same[0].ranges);
      continue;
    }
    int64_t end = range + 1;
    while (alike(same, end)) ++end;
    add_parts(same, range, end);
    cut_keys(same, end);
  }
}

// Parts for the ranges [from, to) of these tiles, which lie in the same pages.
void AttentionRun::add_parts(std::span<QueryTile> tiles, int64_t from, int64_t to) {
  std::size_t begin = 0;
  int64_t queries = 0;
  for (std::size_t i = 0; i < tiles.size(); ++i) {
    const int64_t more = tiles[i].row_count * heads_;
    if (queries + more > kAttentionQueries) {
      add_parts_of(tiles.subspan(begin, i - begin), queries, from, to);
      begin = i;
      queries = 0;
    }
    queries += more;
  }
  add_parts_of(tiles.subspan(begin), queries, from, to);
}

void AttentionRun::add_parts_of(std::span<QueryTile> tiles, int64_t queries, int64_t from, int64_t to) {
  const int64_t step = std::max<int64_t>(1, cost_of_part_ / ((kReadCost + queries) * kAttentionRange));
  const auto first_row = static_cast<int64_t>(rows_.size());
  for (QueryTile& tile : tiles) add_rows(tile, std::min(from + step, to));
  AttentionPart part = common_;
  part.pages = tiles[0].pages.data();
  part.row_count = static_cast<int64_t>(rows_.size()) - first_row;
  for (part.kv_head = 0; part.kv_head < kv_heads_; ++part.kv_head) {
    for (int64_t head = 0; head < group_; head += heads_) {
      part.head_begin = part.kv_head * group_ + head;
      part.head_end = part.kv_head * group_ + std::min(group_, head + heads_);
      for (int64_t range = from; range < to; range += step) {
        part.key_begin = range * kAttentionRange;
        part.key_end = std::min(range + step, to) * kAttentionRange;
        parts_.push_back(part);
        first_row_.push_back(first_row);
      }
    }
  }
}

// The rows of one tile for parts of which the first ends with range `end`.
void AttentionRun::add_rows(QueryTile& tile, int64_t end) {
  const bool fresh = tile.later == 0;
  if (fresh) tile.later = end;
  const int64_t slots = 1 + tile.ranges - tile.later;
  const int64_t floats = kv_heads_ * group_ * slots * kAttentionPartial;  // of a row
  if (fresh && slots > 1) {
    tile.partials = partials_used_;
    partials_used_ += tile.row_count * floats;
  }
  for (int64_t r = 0; r < tile.row_count; ++r) {
    const int64_t partials = tile.partials < 0 ? -1 : tile.partials + r * floats;
    rows_.push_back({tile.row + r, tile.position + (causal_ ? r : 0), partials, slots, tile.later});
    if (fresh && partials >= 0) merged_.push_back(rows_.back());
  }
}

void AttentionRun::run_parts(int64_t grain) {
  pool_.parallel_for(static_cast<int64_t>(parts_.size()), grain, [&](int64_t begin, int64_t end, int worker) {
    for (int64_t i = begin; i < end; ++i) {
      AttentionPart part = parts_[static_cast<std::size_t>(i)];
      part.rows = rows_.data() + first_row_[static_cast<std::size_t>(i)];
      part.partials = partials_.data();
      part.scratch = scratch_[static_cast<std::size_t>(worker)].as<float>().data();
      table_.attention(part);
    }
  });
}

void AttentionRun::merge() {
  const int64_t heads = kv_heads_ * group_;
  int64_t slots = 0;
  for (const AttentionRow& row : merged_) slots += row.slots;
  const auto count = static_cast<int64_t>(merged_.size());
  const int64_t grain = slots * heads * common_.head_dim < kInlineProducts ? std::max<int64_t>(count, 1) : 1;
  pool_.parallel_for(count, grain, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const AttentionRow& row = merged_[static_cast<std::size_t>(i)];
      for (int64_t head = 0; head < heads; ++head) {
        table_.merge_partials(partials_.data() + row.partials + head * row.slots * kAttentionPartial, row.slots,
                              common_.head_dim, common_.out + row.row * common_.out_stride + head * common_.head_dim);
      }
    }
  });
}

}  // namespace millrace::kernels
