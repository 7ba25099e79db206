#include "kernels/cpu/attention_run.h"

#include <algorithm>
#include <limits>

namespace millrace::kernels {
namespace {

static_assert(kAttentionBlockKeys == kAttentionBlock && kAttentionRangeKeys == kAttentionRange);
static_assert(kAttentionMaxHeadDim == kMaxHeadDim && kAttentionRange % kAttentionBlock == 0);

// Below this amount of work a loop runs on the calling thread: waking a sleeping thread costs some microseconds.
constexpr int64_t kInlineProducts = 64 * 1024;
// Parts of at most this many queries are cut by ranges of keys. Each query and range costs a partial sum in memory.
constexpr int64_t kSplitQueries = 32;
constexpr int64_t kPartsPerThread = 8;

KvKind kv_kind(DType type) {
  if (type == DType::kF16) return KvKind::kF16;
  if (type == DType::kBF16) return KvKind::kBF16;
  return type == DType::kI8 ? KvKind::kI8 : KvKind::kF32;
}

int64_t queries_of(const AttentionPart& part) {
  return (part.row_end - part.row_begin) * (part.head_end - part.head_begin);
}

}  // namespace

void AttentionRun::operator()(ConstRows q, const KvLayer& kv, std::span<const AttentionSequence> sequences,
                              const AttentionParams& params, Rows out) {
  AttentionPart all{};
  all.q = q.data;
  all.q_stride = q.stride;
  all.out = out.data;
  all.out_stride = out.stride;
  all.k = static_cast<const char*>(kv.k);
  all.v = static_cast<const char*>(kv.v);
  all.kind = kv_kind(kv.dtype);
  all.page_size = kv.page_size;
  all.page_stride_bytes = kv.page_stride_bytes;
  all.head_dim = kv.head_dim;
  all.window = params.window;
  all.scale = params.scale;
  all.key_end = std::numeric_limits<int64_t>::max();
  parts_.clear();
  part_partials_.clear();
  splits_.clear();
  partials_used_ = 0;
  int64_t products = 0;
  for (const AttentionSequence& s : sequences) {
    products += s.row_count * (s.kv_length_before + s.row_count) * q.width;
    cut(all, s, params, kv.kv_heads);
  }
  if (static_cast<int64_t>(partials_.size()) < partials_used_)
    partials_.resize(static_cast<std::size_t>(partials_used_));
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    if (part_partials_[i] >= 0) parts_[i].partial = partials_.data() + part_partials_[i];
  }
  run_parts(products < kInlineProducts ? std::max<int64_t>(static_cast<int64_t>(parts_.size()), 1) : 1);
  merge_splits();
}

void AttentionRun::cut(const AttentionPart& all, const AttentionSequence& s, const AttentionParams& params,
                       int64_t kv_heads) {
  const int64_t group = params.heads / kv_heads;
  const int64_t heads = std::min(group, kAttentionQueries);
  int64_t rows = kAttentionQueries / heads;
  // Shorter parts where there would be too few for the threads to share evenly.
  while (rows > 8 && (s.row_count + rows - 1) / rows * kv_heads < kPartsPerThread * pool_.size()) rows /= 2;
  // The last rows see most keys: they go first, so that no thread is left with a long part at the end.
  for (int64_t row = (s.row_count + rows - 1) / rows * rows - rows; row >= 0; row -= rows) {
    for (int64_t kv_head = 0; kv_head < kv_heads; ++kv_head) {
      for (int64_t head = 0; head < group; head += heads) {
        AttentionPart part = all;
        part.pages = s.pages.data();
        part.kv_head = kv_head;
        part.head_begin = kv_head * group + head;
        part.head_end = kv_head * group + std::min(group, head + heads);
        part.row_begin = s.row_begin + row;
        part.row_end = s.row_begin + std::min(s.row_count, row + rows);
        part.position = s.kv_length_before + row;
        cut_keys(part);
      }
    }
  }
}

void AttentionRun::cut_keys(const AttentionPart& part) {
  const int64_t last = part.position + (part.row_end - part.row_begin) - 1;
  const int64_t oldest = part.window > 0 ? std::max<int64_t>(0, part.position - part.window + 1) : 0;
  const int64_t first_range = oldest / kAttentionRange;
  const int64_t ranges = last / kAttentionRange + 1 - first_range;
  const int64_t queries = queries_of(part);
  if (ranges == 1 || queries > kSplitQueries) {
    parts_.push_back(part);
    part_partials_.push_back(-1);
    return;
  }
  splits_.push_back({part, ranges, partials_used_});
  for (int64_t r = 0; r < ranges; ++r) {
    AttentionPart one = part;
    one.key_begin = (first_range + r) * kAttentionRange;
    one.key_end = one.key_begin + kAttentionRange;
    parts_.push_back(one);
    part_partials_.push_back(partials_used_);
    partials_used_ += queries * kAttentionPartial;
  }
}

void AttentionRun::run_parts(int64_t grain) {
  pool_.parallel_for(static_cast<int64_t>(parts_.size()), grain, [&](int64_t begin, int64_t end, int worker) {
    for (int64_t i = begin; i < end; ++i) {
      AttentionPart part = parts_[static_cast<std::size_t>(i)];
      part.scratch = scratch_[static_cast<std::size_t>(worker)].as<float>().data();
      table_.attention(part);
    }
  });
}

void AttentionRun::merge_splits() {
  int64_t elements = 0;
  for (const Split& s : splits_) elements += s.ranges * queries_of(s.part) * s.part.head_dim;
  const int64_t count = static_cast<int64_t>(splits_.size());
  pool_.parallel_for(
      count, elements < kInlineProducts ? std::max<int64_t>(count, 1) : 1, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i) {
          const Split& s = splits_[static_cast<std::size_t>(i)];
          table_.merge_ranges(s.part, partials_.data() + s.partials, s.ranges, queries_of(s.part) * kAttentionPartial);
        }
      });
}

}  // namespace millrace::kernels
