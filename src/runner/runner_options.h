// How a runner, or one range of a chain of runners, computes. Thread safety: values.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "base/ids.h"
#include "kernels/ops.h"
#include "runner/metered_ops.h"
#include "runner/row_source.h"
#include "tensor/dtype.h"

namespace millrace {

inline constexpr int32_t kMaxRowsPerStep = 512;   // rows that go through the layers together
inline constexpr int32_t kMaxRunnerRows = 65536;  // the most that max_rows may ask for

// Sees the logits of a group of rows before they are sampled and scored, and may change them: tests compare and break
// them here.
// Called on the compute thread.
using LogitsHook = std::function<void(uint64_t step, std::span<const ReqId> requests, kernels::Rows logits)>;

struct RunnerOptions {
  int threads = 0;              // of the compute pool; 0 = all CPUs that this process may use
  int32_t page_size = 16;       // tokens
  int32_t page_count = 0;       // see page_count_for()
  int32_t host_page_count = 0;  // of the host tier; 0: there is none
  DType kv_dtype = DType::kF32;
  kernels::Activations activations = kernels::Activations::kF32;
  int32_t context_length = 0;  // 0 = the model's own; never more than that
  int32_t max_rows = kMaxRowsPerStep;
  bool poison_pages = false;              // fresh pages hold NaN: for tests
  std::optional<kernels::Isa> isa;        // default: the best that runs here, or that of MILLRACE_ISA
  OpMeters* meters = nullptr;             // counts each operation; must outlive the runner, read it while no batch runs
  LogitsHook logits_hook;                 // for tests
  std::shared_ptr<RowSource> row_source;  // of sequences whose rows are no embeddings; null: there are none
};

}  // namespace millrace
