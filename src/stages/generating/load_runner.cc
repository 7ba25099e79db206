#include "stages/generating/load_runner.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/cpu_info.h"
#include "base/log.h"
#include "base/xxh3.h"
#include "formats/weights.h"
#include "models/split_plan.h"
#include "runner/chain_runner.h"
#include "runner/layer_step.h"
#include "runner/model_runner.h"
#include "stages/generating/kv_sizes.h"
#include "stages/generating/loading.h"
#include "stages/generating/text_checksum.h"

namespace millrace {
namespace {

Result<std::unique_ptr<Runner>> load_all(const ModelOptions& options, const LoadProgress& progress) {
  ASSIGN_OR_RETURN(std::shared_ptr<const Model> model, load_weights(options, progress));
  ASSIGN_OR_RETURN(RunnerOptions runner, runner_options(model->config(), options));
  ASSIGN_OR_RETURN(auto made, ModelRunner::make(std::move(model), std::move(runner)));
  return std::unique_ptr<Runner>(std::move(made));
}

// The processors of this host, shared: all ranges compute at the same time. The first ones get what does not divide.
int threads_of(const ModelOptions& options, uint32_t index) {
  const int all = options.threads > 0 ? options.threads : cpu_info().usable_cpus;
  return std::max(1, all / options.pp + (static_cast<int>(index) < all % options.pp ? 1 : 0));
}

// Of the model's small files, the bytes of its weights, and how they are held.
Result<uint64_t> model_hash(const ModelOptions& options, const WeightStore& store) {
  ASSIGN_OR_RETURN(const uint64_t text, text_checksum(options.model));
  const uint64_t numbers[] = {text, store.total_bytes()};
  FieldsChecksum sum;
  sum.add(numbers, sizeof(numbers));
  sum.add(options.quantize);
  clear_upper_vectors();
  return sum.value();
}

// Of each range, as --pp and --split ask for. Every process of a chain comes to the same.
Result<std::vector<LayerRange>> split_layers(const ModelConfig& config, const WeightStore& store,
                                             const ModelOptions& options) {
  const auto rule = parse_split_rule(options.split);
  if (!rule.ok()) return rule.status().with_prefix("--split");
  ASSIGN_OR_RETURN(const DType dtype, kv_dtype_from_name(options.kv_dtype));
  const auto kv_layer_token_bytes = static_cast<uint64_t>(kv_page_bytes(config, {0, 1}, 1, dtype));
  const auto plan = plan_split(model_sizes(config, store), *rule, options.pp, kv_layer_token_bytes,
                               context_length(config, options.context_length));
  if (!plan.ok()) return plan.status().with_prefix(fmt::format("--pp {} --split {}", options.pp, options.split));
  std::vector<LayerRange> ranges;
  for (const SplitPlan::Range& range : plan->ranges) ranges.push_back(range.layers);
  return ranges;
}

Result<std::unique_ptr<Runner>> load_chain(const ModelOptions& options, const OpenChain& open,
                                           const LoadProgress& progress) {
  ASSIGN_OR_RETURN(const ModelDir dir, open_model_dir(options.model));
  ASSIGN_OR_RETURN(const WeightStore store, WeightStore::open(options.model));
  ASSIGN_OR_RETURN(const std::vector<LayerRange> ranges, split_layers(dir.config, store, options));
  ASSIGN_OR_RETURN(const uint64_t hash, model_hash(options, store));
  ASSIGN_OR_RETURN(RunnerOptions runner, runner_options(dir.config, options, store.total_bytes()));
  const auto count = static_cast<uint32_t>(ranges.size());
  ASSIGN_OR_RETURN(ChainLinks links, open(options, {count, runner.page_count, runner.host_page_count}));
  runner.threads = threads_of(options, 0);
  ASSIGN_OR_RETURN(std::shared_ptr<const Model> first, load_weights(options, progress, ranges[0]));
  ASSIGN_OR_RETURN(std::unique_ptr<ChainRunner> chain,
                   ChainRunner::make(std::move(first), std::move(runner), {count, hash}, std::move(links)));
  RETURN_IF_ERROR(chain->wait_complete([&] {
    progress(fmt::format("waiting for {} other layer ranges", count - 1), 1.0);
    return true;
  }));
  return std::unique_ptr<Runner>(std::move(chain));
}

}  // namespace

LoadRunner make_load_runner(const ModelOptions& options, OpenChain open) {
  return [options, open = std::move(open)](const LoadProgress& progress) {
    return options.pp > 1 ? load_chain(options, open, progress) : load_all(options, progress);
  };
}

Result<std::unique_ptr<RangeServer>> load_range(const ModelOptions& options, uint32_t index, const ChainSize& size,
                                                ChainLinks links, const LoadProgress& progress) {
  ASSIGN_OR_RETURN(const ModelDir dir, open_model_dir(options.model));
  ASSIGN_OR_RETURN(const WeightStore store, WeightStore::open(options.model));
  ASSIGN_OR_RETURN(const std::vector<LayerRange> ranges, split_layers(dir.config, store, options));
  if (index < 1 || index >= ranges.size() || size.ranges != ranges.size()) {
    return invalid_argument("range {} of {}; wanted 1 to {}", index, size.ranges, ranges.size() - 1);
  }
  ASSIGN_OR_RETURN(const uint64_t hash, model_hash(options, store));
  RunnerOptions runner{.threads = threads_of(options, index),
                       .page_size = options.page_size,
                       .page_count = size.page_count,
                       .host_page_count = size.host_page_count,
                       .context_length = options.context_length,
                       .max_rows = options.chunked_prefill_tokens};
  ASSIGN_OR_RETURN(runner.kv_dtype, kv_dtype_from_name(options.kv_dtype));
  ASSIGN_OR_RETURN(std::shared_ptr<const Model> model, load_weights(options, progress, ranges[index]));
  ASSIGN_OR_RETURN(std::unique_ptr<LayerEngine> engine, LayerEngine::make(*model, runner));
  RangeSlot slot{.index = index, .ranges = size.ranges};
  slot.facts = chain_facts(model->config(), runner, engine->isa(), hash, model->weight_version());
  return std::make_unique<RangeServer>(std::move(model), std::move(engine), std::move(slot), std::move(links));
}

}  // namespace millrace
