// millrace inspect: what a model directory holds, without loading it.
#include <cstdio>

#include "app/commands.h"
#include "app/inspect_split.h"
#include "app/output.h"
#include "app/units.h"
#include "base/log.h"
#include "formats/model_config.h"
#include "formats/shard_manifest.h"
#include "formats/weights.h"
#include "models/model.h"
#include "pipeline/supervisor.h"
#include "relay/registry.h"
#include "runner/kv_pages.h"
#include "stages/generating/loading.h"

namespace millrace {
namespace {

void print_row(const char* name, const std::string& value) { std::printf("  %-22s %s\n", name, value.c_str()); }

std::string dtype_summary(const WeightStore& store) {
  std::map<std::string_view, uint64_t> bytes;
  for (const std::string& name : store.names()) {
    const SafetensorsEntry* entry = store.find(name);
    bytes[dtype_name(entry->dtype)] += entry->end - entry->begin;
  }
  std::string text;
  for (const auto& [name, count] : bytes)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, bytes_text(count));
  return text;
}

std::string attention_text(const ModelConfig& c) {
  return fmt::format("{} heads x {}, {} KV heads{}{}", c.heads, c.head_dim, c.kv_heads, c.qk_norm ? ", QK norm" : "",
                     c.qkv_bias ? ", QKV bias" : "");
}

void print_model(const ModelDir& dir, const WeightStore& store) {
  const ModelConfig& c = dir.config;
  std::printf("%s\n", dir.path.c_str());
  print_row("architecture", std::string(architecture_name(c.architecture)));
  print_row("parameters", fmt::format("{} ({})", count_text(parameter_count(c)), parameter_count(c)));
  print_row("weights", fmt::format("{} in {} file{} ({})", bytes_text(store.total_bytes()), store.shard_count(),
                                   store.shard_count() == 1 ? "" : "s", dtype_summary(store)));
  print_row("layers", fmt::format("{}, hidden {}, intermediate {}", c.layers, c.hidden_size, c.intermediate_size));
  print_row("attention", attention_text(c));
  print_row("vocabulary", fmt::format("{}, {} head", c.vocab_size, c.tie_word_embeddings ? "tied" : "own"));
  print_row("context length", fmt::format("{} tokens", c.max_position_embeddings));
  print_row("rope", fmt::format("{}, theta {}", rope_type_name(c.rope.type), c.rope.theta));
  for (const char* name : {"f32", "bf16", "f16", "int8"}) {
    const auto dtype = kv_dtype_from_name(name);
    if (!dtype.ok()) continue;
    const auto token = static_cast<uint64_t>(kv_page_bytes(c, {0, c.layers}, 1, *dtype));
    print_row(name == std::string("f32") ? "KV cache" : "",
              fmt::format("{:<4} {} a token, {} for a whole context", name, bytes_text(token),
                          bytes_text(token * static_cast<uint64_t>(c.max_position_embeddings))));
  }
}

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
  // Checks every tensor's name and shape against the config.
  ASSIGN_OR_RETURN(const auto model, load_model(dir.config, store, layers, 1));
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

// Which roads there are for tensors between stages.
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

int run_inspect(const InspectOptions& options) {
  log_init("inspect", LogLevel::kOff);
  if (options.relays) return print_relays(), 0;
  if (options.model.empty()) {
    print_error(invalid_argument("model is missing; wanted a Hugging Face model directory, a GGUF file, or --relays"));
    return kExitBadInput;
  }
  Status status = inspect(options);
  if (status.ok()) return 0;
  print_error(status);
  return kExitBadInput;
}

}  // namespace millrace
