#include "stages/generating/load_runner.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/cpu_info.h"
#include "base/memory_info.h"
#include "base/xxh3.h"
#include "formats/shard_manifest.h"
#include "formats/weights.h"
#include "models/split_plan.h"
#include "runner/chain_runner.h"
#include "runner/layer_step.h"
#include "runner/model_runner.h"
#include "stages/generating/kv_sizes.h"
#include "stages/generating/loading.h"
#include "stages/generating/tensors_hash.h"
#include "stages/generating/text_checksum.h"

namespace millrace {
namespace {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

// Of a shard, that it has the layers of the range, and that its files are those that `millrace split` wrote.
Status check_shard(const ModelOptions& options, LayerRange range, const LoadProgress& progress) {
  ASSIGN_OR_RETURN(const std::optional<ShardManifest> shard, read_shard_manifest(options.model));
  if (!shard) return ok_status();
  if (range.begin < shard->begin || range.end > shard->end || (range.begin == 0 && shard->begin != 0)) {
    return invalid_argument(
        "{} is a shard with the layers [{}, {}) of {}; wanted one with [{}, {}), or the complete model", options.model,
        shard->begin, shard->end, shard->layers, range.begin, range.end);
  }
  return check_shard_files(options.model, *shard, [&progress](uint64_t done, uint64_t total) {
    progress("checking the shard", total ? static_cast<double>(done) / static_cast<double>(total) : 1.0);
  });
}

Result<std::unique_ptr<Runner>> load_all(const ModelOptions& options, const LoadProgress& progress) {
  ASSIGN_OR_RETURN(const ModelDir dir, open_model_dir(options.model));
  RETURN_IF_ERROR(check_shard(options, {0, dir.config.layers}, progress));
  ASSIGN_OR_RETURN(std::shared_ptr<const Model> model, load_weights(options, progress));
  ASSIGN_OR_RETURN(RunnerOptions runner, runner_options(model->config(), options));
  ASSIGN_OR_RETURN(auto made, ModelRunner::make(std::move(model), std::move(runner)));
  return std::unique_ptr<Runner>(std::move(made));
}

// With --pp, the processors of this host, shared: all ranges compute at the same time. The first ones get what does not
// divide.
int threads_of(const ModelOptions& options, uint32_t index) {
  if (options.pp == 1) return options.threads;
  const int all = options.threads > 0 ? options.threads : cpu_info().usable_cpus;
  return std::max(1, all / options.pp + (static_cast<int>(index) < all % options.pp ? 1 : 0));
}

Status check_ranges(const std::vector<LayerRange>& ranges, const ModelConfig& config) {
  if (ranges.back().end == config.layers) return ok_status();
  return invalid_argument("the layers of the chain end at {}; wanted {}, as many as the model has", ranges.back().end,
                          config.layers);
}

Result<std::unique_ptr<Runner>> load_first(const ModelOptions& options, const std::vector<LayerRange>& ranges,
                                           const std::function<Result<ChainLinks>()>& open,
                                           const LoadProgress& progress) {
  ASSIGN_OR_RETURN(const ModelDir dir, open_model_dir(options.model));
  RETURN_IF_ERROR(check_ranges(ranges, dir.config));
  RETURN_IF_ERROR(check_shard(options, ranges[0], progress));
  ASSIGN_OR_RETURN(const WeightStore store, WeightStore::open(options.model));
  ASSIGN_OR_RETURN(const uint64_t hash, model_hash(options));
  ASSIGN_OR_RETURN(RunnerOptions runner, runner_options(dir.config, options, store.total_bytes()));
  runner.threads = threads_of(options, 0);
  const auto count = static_cast<uint32_t>(ranges.size());
  ASSIGN_OR_RETURN(ChainLinks links, open());
  ASSIGN_OR_RETURN(std::shared_ptr<const Model> first, load_weights(options, progress, ranges[0]));
  ASSIGN_OR_RETURN(std::unique_ptr<ChainRunner> chain,
                   ChainRunner::make(std::move(first), std::move(runner), {count, hash}, std::move(links)));
  const Status complete = chain->wait_complete([&] {
    progress(fmt::format("waiting for {} other layer range{}", count - 1, count == 2 ? "" : "s"), 1.0);
    return true;
  });
  // Another start of this process would find the same.
  if (complete.code() == StatusCode::kConflict) return invalid_argument("{}", complete.message());
  RETURN_IF_ERROR(complete);
  return std::unique_ptr<Runner>(std::move(chain));
}

// Of a range on another host, that it has the memory which the first one's pages take there. `kv_gib`: no more than
// that for those that are no host tier's; 0: what is free. With --pp the first range has chosen for all.
Status check_memory(const Model& model, const RunnerOptions& sizes, const ModelOptions& options) {
  if (options.pp > 1) return ok_status();
  const auto page =
      static_cast<uint64_t>(kv_page_bytes(model.config(), model.layers(), sizes.page_size, sizes.kv_dtype));
  const auto pages = static_cast<uint64_t>(sizes.page_count), host_pages = static_cast<uint64_t>(sizes.host_page_count);
  const bool given = options.kv_gib > 0;
  const uint64_t limit = given ? static_cast<uint64_t>(options.kv_gib * kGiB) : memory_info().available_bytes;
  if (given ? pages <= limit / page : pages + host_pages <= limit / page) return ok_status();
  return error(
      StatusCode::kResourceExhausted,
      "the first range has {} KV pages and {} of the host tier, of {} bytes here, and {} bytes {}; wanted space "
      "for all, or a smaller --kv-gib of the first range",
      pages, host_pages, page, limit, given ? "are the --kv-gib here" : "are free");
}

}  // namespace

Result<uint64_t> model_hash(const ModelOptions& options) {
  ASSIGN_OR_RETURN(const uint64_t text, text_checksum(options.model));
  ASSIGN_OR_RETURN(const uint64_t tensors, tensors_hash(options.model));
  const uint64_t numbers[] = {text, tensors};
  FieldsChecksum sum;
  sum.add(numbers, sizeof(numbers));
  sum.add(options.quantize);
  clear_upper_vectors();
  return sum.value();
}

Result<std::string> arithmetic_of(const ModelOptions& options) {
  ASSIGN_OR_RETURN(const kernels::Isa isa, kernels::resolve_isa());
  ASSIGN_OR_RETURN(const kernels::Activations activations, kernels::activations_from_name(options.activations));
  return kernels::arithmetic_name(isa, activations);
}

LoadRunner make_load_runner(const ModelOptions& options, StartRanges start, std::shared_ptr<const ChainSlot> chain) {
  return [options, start = std::move(start),
          chain = std::move(chain)](const LoadProgress& progress) -> Result<std::unique_ptr<Runner>> {
    if (chain) return load_first(options, chain->ranges, chain->open, progress);
    if (options.pp == 1) return load_all(options, progress);
    ASSIGN_OR_RETURN(const std::vector<LayerRange> ranges, split_layers(options));
    const auto open = [&] { return start(options, static_cast<uint32_t>(ranges.size())); };
    return load_first(options, ranges, open, progress);
  };
}

Result<std::vector<LayerRange>> split_layers(const ModelOptions& options) {
  ASSIGN_OR_RETURN(const ModelDir dir, open_model_dir(options.model));
  ASSIGN_OR_RETURN(const WeightStore store, WeightStore::open(options.model));
  const auto rule = parse_split_rule(options.split);
  if (!rule.ok()) return rule.status().with_prefix("--split");
  ASSIGN_OR_RETURN(const DType dtype, kv_dtype_from_name(options.kv_dtype));
  const auto kv_layer_token_bytes = static_cast<uint64_t>(kv_page_bytes(dir.config, {0, 1}, 1, dtype));
  const auto plan = plan_split(model_sizes(dir.config, store), *rule, options.pp, kv_layer_token_bytes,
                               context_length(dir.config, options.context_length));
  if (!plan.ok()) return plan.status().with_prefix(fmt::format("--pp {} --split {}", options.pp, options.split));
  std::vector<LayerRange> ranges;
  for (const SplitPlan::Range& range : plan->ranges) ranges.push_back(range.layers);
  return ranges;
}

Result<std::unique_ptr<RangeServer>> load_range(const ModelOptions& options, const std::vector<LayerRange>& ranges,
                                                uint32_t index, ChainLinks links, const LoadProgress& progress) {
  if (index < 1 || index >= ranges.size()) {
    return invalid_argument("range {}; wanted 1 to {}", index, ranges.size() - 1);
  }
  ASSIGN_OR_RETURN(const ModelDir dir, open_model_dir(options.model));
  RETURN_IF_ERROR(check_ranges(ranges, dir.config));
  RETURN_IF_ERROR(check_shard(options, ranges[index], progress));
  ASSIGN_OR_RETURN(const uint64_t hash, model_hash(options));
  RunnerOptions runner{.threads = threads_of(options, index), .context_length = options.context_length};
  ASSIGN_OR_RETURN(runner.kv_dtype, kv_dtype_from_name(options.kv_dtype));
  ASSIGN_OR_RETURN(runner.activations, kernels::activations_from_name(options.activations));
  ASSIGN_OR_RETURN(const kernels::Isa isa, kernels::resolve_isa());
  ASSIGN_OR_RETURN(std::shared_ptr<const Model> model, load_weights(options, progress, ranges[index]));
  RangeSlot slot{.index = index, .ranges = static_cast<uint32_t>(ranges.size())};
  slot.facts = chain_facts(model->config(), runner, isa, hash, model->weight_version());
  slot.make_engine = [model, runner, options](const wire::ChainFacts& first) -> Result<std::unique_ptr<LayerEngine>> {
    RunnerOptions sizes = runner;
    sizes.page_size = first.page_size, sizes.page_count = first.page_count;
    sizes.host_page_count = first.host_page_count, sizes.max_rows = first.max_rows;
    RETURN_IF_ERROR(check_memory(*model, sizes, options));
    return LayerEngine::make(*model, sizes);
  };
  return std::make_unique<RangeServer>(std::move(model), nullptr, std::move(slot), std::move(links));
}

Result<wire::KvFormat> kv_format(const ModelOptions& options, const RunnerFacts& facts) {
  wire::KvFormat format;
  ASSIGN_OR_RETURN(format.model_hash, model_hash(options));
  format.weights_checksum = facts.weights_checksum;
  format.page_size = facts.page_size;
  format.page_bytes = facts.kv_page_bytes;
  format.kv_dtype = options.kv_dtype;
  ASSIGN_OR_RETURN(format.isa, arithmetic_of(options));
  return format;
}

}  // namespace millrace
