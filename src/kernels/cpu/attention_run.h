// How the attention of a step is cut into parts for the threads: by rows, kv head and ranges of keys. Rows of several
// sequences whose pages begin alike (a shared prompt) are one part there, so that those keys and values are read once
// for all of them. The cut decides who computes what and never a bit of the result.
// Owner: CpuOps. Threads: as Ops, one caller at a time; it drives the pool.
#pragma once

#include <span>
#include <vector>

#include "kernels/cpu/kernel_table.h"
#include "kernels/ops.h"

namespace millrace::kernels {

class AttentionRun {
 public:
  // One Buffer of kAttentionScratch floats per worker of the pool, at least.
  AttentionRun(const KernelTable& table, ThreadPool& pool, std::span<Buffer> scratch)
      : table_(table), pool_(pool), scratch_(scratch) {}

  void operator()(ConstRows q, const KvLayer& kv, std::span<const AttentionSequence> sequences,
                  const AttentionParams& params, Rows out);

 private:
  // Rows of one sequence that are computed together, and what of their keys they may share.
  struct QueryTile {
    std::span<const int32_t> pages;
    int64_t row, position, row_count;  // the first row of the batch, the last position that it sees
    int64_t first, ranges;             // the ranges of keys that any of them sees: [first, ranges)
    int64_t shareable;                 // ranges [first, shareable) hold nothing but positions before this step's
    int64_t later = 0;                 // as in AttentionRow; 0: no part has been cut yet
    int64_t partials = -1;
  };

  void begin(ConstRows q, const KvLayer& kv, const AttentionParams& params, Rows out);
  QueryTile tile_of(const AttentionSequence& sequence, int64_t row, int64_t row_count) const;
  void cut_rows(const AttentionSequence& sequence);
  std::span<const int32_t> pages_of(const QueryTile& tile, int64_t range) const;
  bool alike(std::span<const QueryTile> tiles, int64_t range) const;
  void cut_keys(std::span<QueryTile> tiles, int64_t range);
  void add_parts(std::span<QueryTile> tiles, int64_t from, int64_t to);
  void add_parts_of(std::span<QueryTile> tiles, int64_t queries, int64_t from, int64_t to);
  void add_rows(QueryTile& tile, int64_t end);
  void run_parts(int64_t grain);
  void merge();

  const KernelTable& table_;
  ThreadPool& pool_;
  std::span<Buffer> scratch_;
  // Of the call: what all parts have in common, query heads of a kv head and of a part, and what a part should cost.
  AttentionPart common_{};
  int64_t kv_heads_ = 0, group_ = 0, heads_ = 0, cost_of_part_ = 0;
  bool causal_ = true;
  // Kept from step to step, so that a step allocates nothing once it has seen the largest.
  std::vector<QueryTile> tiles_;
  std::vector<AttentionPart> parts_;
  std::vector<int64_t> first_row_;  // in rows_, of each part
  std::vector<AttentionRow> rows_;
  std::vector<AttentionRow> merged_;  // rows whose keys were cut
  std::vector<float> partials_;
  int64_t partials_used_ = 0;
};

}  // namespace millrace::kernels
