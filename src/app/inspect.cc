// millrace inspect: what a model directory holds, without loading it.
#include <cstdio>

#include "app/commands.h"
#include "app/inspect_split.h"
#include "app/model_report.h"
#include "app/model_source.h"
#include "app/output.h"
#include "base/log.h"
#include "formats/model_config.h"
#include "formats/shard_manifest.h"
#include "formats/weights.h"
#include "pipeline/supervisor.h"
#include "relay/registry.h"
#include "stages/generating/loading.h"

namespace millrace {
namespace {

Status inspect(const InspectOptions& options) {
  ASSIGN_OR_RETURN(const ModelDir dir, open_model_dir(options.model));
  ASSIGN_OR_RETURN(WeightStore opened, WeightStore::open(options.model));
  auto store = std::make_shared<WeightStore>(std::move(opened));
  ASSIGN_OR_RETURN(const std::optional<ShardManifest> shard, read_shard_manifest(options.model));
  const LayerRange layers = shard ? LayerRange{shard->begin, shard->end} : LayerRange{0, dir.config.layers};
  if (shard && (options.pp || options.split)) {
    return invalid_argument("{} is a shard with the layers [{}, {}); wanted the complete model for --pp and --split",
                            options.model, layers.begin, layers.end);
  }
  RETURN_IF_ERROR(check_model(dir, store, layers));
  ASSIGN_OR_RETURN(const std::optional<SplitPlan> split, split_of(options, dir.config, *store));
  print_model(dir, *store);
  if (shard) {
    print_row("shard", fmt::format("range {} of {}: layers [{}, {}) of {}", shard->range, shard->ranges, layers.begin,
                                   layers.end, shard->layers));
  }
  ModelOptions of_model;
  of_model.model = options.model;
  ASSIGN_OR_RETURN(const TextComponents components, load_text_components(of_model));
  print_row("tokenizer", fmt::format("{} ids", components.tokenizer->vocab_size()));
  print_row("chat template", components.chat_template ? "yes" : "no");
  if (split) print_split(options, *split);
  if (!options.tensors) return ok_status();
  std::printf("\n");
  for (const std::string& name : store->names()) {
    const SafetensorsEntry* entry = store->find(name);
    std::printf("  %-5s %-18s %s\n", std::string(dtype_name(entry->dtype)).c_str(), entry->shape.to_string().c_str(),
                name.c_str());
  }
  return ok_status();
}

// Which transports there are for tensors between stages.
void print_relays() {
  std::printf("%-10s %-10s %-30s %s\n", "relay", "here", "spans", "receives");
  for (const RelayInfo& relay : list_relays()) {
    if (!relay.available) {
      std::printf("%-10s %-10s %s\n", relay.name.c_str(), "absent", relay.reason.c_str());
      continue;
    }
    const RelayCapabilities& c = relay.capabilities;
    std::string spans;
    for (const auto& [flag, what] :
         {std::pair{c.same_process, "process"}, {c.same_host, "host"}, {c.across_hosts, "hosts"}}) {
      if (flag) spans += (spans.empty() ? "" : ", ") + std::string(what);
    }
    std::printf("%-10s %-10s %-30s %s\n", relay.name.c_str(), "yes", spans.c_str(),
                c.by_reference     ? "the sender's own bytes"
                : c.mapped_receive ? "mapped, no copy"
                                   : "a copy");
  }
  std::printf(
      "\nHere means on this machine's own addresses; tcp spans hosts where a pipeline has stages on several.\n");
}

}  // namespace

int run_inspect(const InspectOptions& given) {
  log_init("inspect", LogLevel::kOff);
  InspectOptions options = given;
  if (options.relays) return print_relays(), 0;
  if (options.model.empty()) {
    print_error(invalid_argument("model is missing; wanted a Hugging Face model directory, a GGUF file, or --relays"));
    return kExitBadInput;
  }
  const auto source = cached_source(options.model, "");
  if (!source.ok()) return print_error(source.status()), kExitBadInput;
  options.model = source->path;
  const Status status = inspect(options);
  if (status.ok()) return 0;
  print_error(status);
  return kExitBadInput;
}

}  // namespace millrace
