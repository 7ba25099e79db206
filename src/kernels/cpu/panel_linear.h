// Products with packed quantized weights on the host's processor: quantizes rows of x, cuts the panels into parts for
// the thread pool and calls one ISA's panel kernels on them (panel_table.h, where the arithmetic stands too). Which
// part runs where never changes a bit: parts only divide output elements.
//
// Owner: a CpuOps, one thread at a time. The scratch grows to the widest x seen and at most kPanelRowsAtOnce rows of
// it; after the first steps nothing is allocated.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "kernels/cpu/cpu_input.h"
#include "kernels/cpu/cpu_product.h"
#include "kernels/cpu/panel_table.h"
#include "kernels/ops.h"

namespace millrace::kernels {

// More rows go in turns, so that the rows in work stay in a level-2 cache.
inline constexpr int64_t kPanelRowsAtOnce = 512;

// The panel kernels of an ISA by its name: where the processor lacks what they need beyond the ISA, those of the next
// lower one, which give the same bits from "avx2" up.
const PanelTable& panel_table(std::string_view isa);

class PanelLinear {
 public:
  // `table` and `pool` must outlive it.
  PanelLinear(const PanelTable& table, ThreadPool& pool);

  // As Ops::products, of weights of one dtype. The shapes were checked.
  void run(const CpuInput& x, std::span<const CpuProduct> products);
  void embedding(const Weight& weight, std::span<const int32_t> ids, Rows y);

 private:
  void quantize(PanelKind kind, const PanelActivations& to, int64_t blocks, const CpuInput& x);
  void run_rows(const CpuInput& x, std::span<const CpuProduct> products, int64_t first);

  const PanelTable& table_;
  ThreadPool& pool_;
  Buffer rows_;                  // quantized rows of x
  std::vector<Buffer> made_;     // one per worker: a row of x that is made of others
  std::vector<Buffer> scratch_;  // one per worker
};

}  // namespace millrace::kernels
