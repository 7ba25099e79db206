// linear on the host's processor for plain weights: packs x where there are many rows, cuts the result into parts for
// the thread pool and calls one ISA's kernel on them. Weights that are not in tiles (tiles.h) are brought into that
// form panel by panel on the way, which gives the same bits at a lower speed.
//
// Owner: one CpuOps. Threads: one call at a time. Scratch grows to the largest call and stays.
#pragma once

#include <span>
#include <vector>

#include "kernels/cpu/cpu_input.h"
#include "kernels/cpu/cpu_product.h"
#include "kernels/cpu/linear_table.h"
#include "kernels/ops.h"

namespace millrace::kernels {

WeightKind weight_kind(DType type);  // of f32, f16 or bf16 (CHECK)

class CpuLinear {
 public:
  // `kernels`: one for each WeightKind, which like `pool` outlive this object.
  CpuLinear(const LinearKernel* const (&kernels)[3], ThreadPool& pool);

  // As Ops::products, of weights of one layout (kPlain or kTiles) and one dtype (f32, f16 or bf16).
  void run(const CpuInput& x, std::span<const CpuProduct> products);

 private:
  struct Cut;  // of the work into parts
  ConstRows prepare(const LinearKernel& kernel, const CpuInput& x, bool pack);
  Cut cut(const LinearKernel& kernel, std::span<const CpuProduct> products) const;
  void run_part(const LinearKernel& kernel, const ConstRows& x, const CpuProduct& product, LinearPart part, int worker);
  void run_panels(const LinearKernel& kernel, const LinearPart& part, const Weight& weight, int worker);

  const LinearKernel* kernels_[3];
  ThreadPool& pool_;
  Buffer made_;                  // rows of x that are made of others
  Buffer packed_;                // rows of x, for many
  std::vector<Buffer> scratch_;  // one per worker
  std::vector<Buffer> panels_;   // one per worker, for weights that are not in tiles
};

}  // namespace millrace::kernels
