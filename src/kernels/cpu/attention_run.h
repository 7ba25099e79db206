// How the attention of a step is cut into parts for the threads: by rows and kv head where there are many rows, by
// ranges of keys as well where there are few. The cut decides who computes what and never a bit of the result.
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
  // A part whose keys are computed apart, range by range.
  struct Split {
    AttentionPart part;
    int64_t ranges;
    int64_t partials;  // offset in partials_
  };

  void cut(const AttentionPart& all, const AttentionSequence& sequence, const AttentionParams& params,
           int64_t kv_heads);
  void cut_keys(const AttentionPart& part);
  void run_parts(int64_t grain);
  void merge_splits();

  const KernelTable& table_;
  ThreadPool& pool_;
  std::span<Buffer> scratch_;
  // Kept from step to step, so that a step allocates nothing once it has seen the largest.
  std::vector<AttentionPart> parts_;
  std::vector<int64_t> part_partials_;  // offset in partials_, -1 for none
  std::vector<Split> splits_;
  std::vector<float> partials_;
  int64_t partials_used_ = 0;
};

}  // namespace millrace::kernels
