#include "runner/layer_engine.h"

#include <algorithm>
#include <utility>

#include "base/cpu_info.h"
#include "base/trace.h"
#include "runner/traced_ops.h"
#include "tensor/float_buffer.h"

namespace millrace {
namespace {

std::unique_ptr<kernels::Ops> make_counted_ops(const RunnerOptions& options, kernels::Isa isa, ThreadPool& pool) {
  std::unique_ptr<kernels::Ops> ops = kernels::make_ops(isa, pool, options.activations);
  if (options.meters != nullptr) ops = meter_ops(std::move(ops), *options.meters);
  return trace_ops(std::move(ops));
}

}  // namespace

Result<RunnerFacts> runner_facts(const ModelConfig& config, const RunnerOptions& options) {
  if (options.threads < 0 || options.threads > kMaxPoolThreads) {
    return invalid_argument("threads is {}; wanted 0 (all CPUs) to {}", options.threads, kMaxPoolThreads);
  }
  if (options.max_rows < 1 || options.max_rows > kMaxRunnerRows) {
    return invalid_argument("max_rows is {}; wanted 1 to {}", options.max_rows, kMaxRunnerRows);
  }
  if (options.context_length < 0) {
    return invalid_argument("context_length is {}; wanted 0 (the model's own) or more", options.context_length);
  }
  RunnerFacts facts;
  facts.vocab_size = config.vocab_size;
  facts.context_length = config.max_position_embeddings;
  if (options.context_length > 0) facts.context_length = std::min(facts.context_length, options.context_length);
  facts.page_size = options.page_size;
  facts.page_count = options.page_count;
  facts.host_page_count = options.host_page_count;
  return facts;
}

Result<std::unique_ptr<LayerEngine>> LayerEngine::make(const Model& model, const RunnerOptions& options) {
  RETURN_IF_ERROR(runner_facts(model.config(), options).status());
  kernels::Isa isa{};
  if (options.isa) {
    isa = *options.isa;
  } else {
    ASSIGN_OR_RETURN(isa, kernels::resolve_isa());
  }
  if (!kernels::isa_available(isa)) {
    return error(StatusCode::kUnsupported, "the instruction set {} is not available on this processor",
                 kernels::isa_name(isa));
  }
  ASSIGN_OR_RETURN(KvPages pages, KvPages::make(model.config(), model.layers(),
                                                {.page_size = options.page_size,
                                                 .page_count = options.page_count,
                                                 .host_page_count = options.host_page_count,
                                                 .dtype = options.kv_dtype,
                                                 .poison = options.poison_pages}));
  const int threads = options.threads == 0 ? cpu_info().usable_cpus : options.threads;
  return std::unique_ptr<LayerEngine>(new LayerEngine(model, options, isa, threads, std::move(pages)));
}

LayerEngine::LayerEngine(const Model& model, const RunnerOptions& options, kernels::Isa isa, int threads, KvPages pages)
    : layers_(model.layers()),
      hidden_size_(model.config().hidden_size),
      isa_(isa),
      pool_(threads),
      ops_(make_counted_ops(options, isa, pool_)),
      pages_(std::move(pages)),
      prefault_(pages_.layers()),
      workspace_(model.config(), options.max_rows),
      hidden_(float_buffer(options.max_rows, hidden_size_)) {}

Status LayerEngine::write(const PageWrite& write) {
  RETURN_IF_ERROR(pages_.write(write, pool_));
  std::vector<int32_t> pages;
  for (const PageId page : write.pages) pages.push_back(page.value);
  use_pages(pages);
  return ok_status();
}

void LayerEngine::prefault_in_step() {
  for (int i = 0; i < kKvPrefaultsInStep && prefault_.prefault_in_step(); ++i) {
  }
}

kernels::Rows LayerEngine::rows(int64_t count) {
  CHECK(count <= workspace_.max_rows());
  return {hidden_.as<float>().data(), count, hidden_size_};
}

void LayerEngine::forward(const Model& model, Step step) {
  const kernels::Rows hidden = rows(static_cast<int64_t>(step.positions.size()));
  trace::Span span("layers", "runner");
  span.note("rows", hidden.count);
  step.kv = pages_.layers();
  model.forward(step, hidden, workspace_, *ops_);
}

}  // namespace millrace
