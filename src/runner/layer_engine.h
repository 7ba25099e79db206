// LayerEngine: one range of a model's layers on this machine: its KV pages, workspace and threads. Rows go in and the
// same rows come out, having passed the layers of the range; it knows no tokens' meaning, no sampling and no requests.
// A model on one machine is one range of all layers; a layer split is several engines (runner/chain_runner.h).
//
// Owner: a runner or a range server. Thread safety: none: one compute thread, but for motion(). Nothing is allocated
// for activations after make().
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/thread_pool.h"
#include "kernels/ops.h"
#include "models/model.h"
#include "runner/kv_pages.h"
#include "runner/kv_prefault.h"
#include "runner/runner.h"
#include "runner/runner_options.h"

namespace millrace {

class LayerEngine {
 public:
  // For models of these shapes and this range. kInvalidArgument or kUnsupported for options out of range,
  // kResourceExhausted where the pages do not fit in memory.
  static Result<std::unique_ptr<LayerEngine>> make(const Model& model, const RunnerOptions& options);

  LayerRange layers() const { return layers_; }
  kernels::Isa isa() const { return isa_; }
  ThreadPool& pool() { return pool_; }
  kernels::Ops& ops() { return *ops_; }
  // Changes while something computes. Any thread.
  uint64_t motion() const { return pool_.motion(); }

  // Before the rows of a step. kInvalidArgument where a page lies outside the pool or the host tier.
  Status copy(std::span<const PageCopy> copies) { return pages_.copy(copies, pool_); }
  // The bytes of complete pages, between the copies and the rows of a step; errors as those of KvPages.
  Status write(const PageWrite& write);
  // Any thread, also while others are computed: of pages that are not written meanwhile (KvPages::read).
  Status read(std::span<const PageId> pages, std::span<std::byte> to, LayerSpan layers) const {
    return pages_.read(pages, to, layers);
  }
  // A sequence of the step that is about to run has these pages.
  void use_pages(std::span<const int32_t> pages) { prefault_.add_used(pages); }
  // KV memory ahead of its use: a busy engine's share in a step, and a chunk while there is no work (false: there is
  // nothing to do).
  void prefault_in_step();
  bool prefault_idle() { return prefault_.prefault(prefault_.rows_ahead()); }

  // [count, hidden_size] of the activations; count <= max_rows. The same memory each time.
  kernels::Rows rows(int64_t count);
  // Takes rows(step.positions.size()) through the layers of `model`, whose range and shapes are those of make().
  // step.kv is set here.
  void forward(const Model& model, Step step);

 private:
  LayerEngine(const Model& model, const RunnerOptions& options, kernels::Isa isa, int threads, KvPages pages);

  const LayerRange layers_;
  const int64_t hidden_size_;
  const kernels::Isa isa_;
  ThreadPool pool_;
  std::unique_ptr<kernels::Ops> ops_;
  KvPages pages_;
  KvPrefault prefault_;
  Workspace workspace_;
  Buffer hidden_;
};

// What a scheduler must know of an engine with these options. kInvalidArgument for options out of range.
Result<RunnerFacts> runner_facts(const ModelConfig& config, const RunnerOptions& options);

}  // namespace millrace
