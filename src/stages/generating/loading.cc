#include "stages/generating/loading.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <ctime>
#include <filesystem>

#include "base/cpu_info.h"
#include "base/log.h"
#include "base/memory_info.h"
#include "formats/pooling_config.h"
#include "formats/reranker_config.h"
#include "formats/same_config.h"
#include "formats/snapshot_manifest.h"
#include "formats/tensor_names.h"
#include "formats/weights.h"
#include "models/model.h"
#include "models/model_text.h"
#include "models/packed_cache.h"
#include "runner/model_runner.h"
#include "stages/generating/kv_sizes.h"
#include "stages/generating/score_head.h"
#include "stages/generating/start_weights.h"
#include "stages/generating/weight_snapshot.h"
#include "stages/media/media_facts.h"
#include "text/tools/dialect.h"
#include "text/tools/history_form.h"

namespace millrace {
namespace {

constexpr std::size_t kMinPromptBytes = 64u << 10;

std::string directory_name(const std::string& path) {
  // "." and "model/" have no last component before this.
  std::filesystem::path clean = std::filesystem::absolute(path).lexically_normal();
  if (!clean.has_filename()) clean = clean.parent_path();
  return clean.extension() == ".gguf" ? clean.stem().string() : clean.filename().string();
}

// The longest byte string that one token stands for.
std::size_t longest_token_bytes(const Tokenizer& tokenizer) {
  std::size_t longest = 1;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) longest = std::max(longest, tokenizer.token_text(id).size());
  return longest;
}

ModelFacts make_facts(const ModelOptions& options, const std::string& served_name, const TextComponents& components) {
  ModelFacts facts;
  facts.name = served_name.empty() ? directory_name(options.model) : served_name;
  facts.path = options.model;
  facts.architecture = architecture_name(components.dir.config.architecture);
  facts.context_length = context_length(components.dir.config, options.context_length);
  facts.vocab_size = components.dir.config.vocab_size;
  facts.max_requests = int64_t{options.max_running_requests} + options.max_queued_requests;
  facts.embedding_size = components.dir.config.hidden_size;
  // Not refused at the start: the other endpoints work, and that of embeddings answers with this reason.
  if (options.pp > 1) facts.no_embeddings = "its layers are split over processes (--pp)";
  facts.created = std::time(nullptr);
  facts.has_chat_template = components.chat_template.has_value();
  const GenerationDefaults& generation = components.dir.generation;
  facts.temperature = generation.temperature;
  facts.top_p = generation.top_p;
  facts.min_p = generation.min_p;
  facts.top_k = generation.top_k;
  facts.repetition_penalty = generation.repetition_penalty;
  return facts;
}

}  // namespace

namespace {

// How the output is read: as the options name it, or as the chat template writes it.
Status find_dialects(const ModelOptions& options, TextComponents& components) {
  ModelFacts& facts = components.facts;
  const bool has_template = components.chat_template.has_value();
  if (has_template) facts.chat_template = components.chat_template->source();
  // A template may have a form of its own for requests with tools: the dialect of calls is read from that one.
  const std::string with_tools = has_template ? components.chat_template->source(true) : "";
  ASSIGN_OR_RETURN(facts.tool_dialect, tool_dialect_of(options.tool_parser, with_tools));
  ASSIGN_OR_RETURN(facts.reasoning_dialect, reasoning_dialect_of(options.reasoning_parser, with_tools));
  if (const auto markers = markers_of(facts.tool_dialect); !markers.empty()) {
    const std::optional<int32_t> id = components.tokenizer->id_of(markers.front());
    facts.has_tool_token = id && components.tokenizer->is_added(*id);
  }
  if (has_template) facts.tool_history = find_tool_history_form(*components.chat_template);
  return ok_status();
}

// The two tokens, or the head, by which the model scores how well a document answers a query.
Status find_reranker(const std::string& path, TextComponents& components) {
  ASSIGN_OR_RETURN(const std::optional<RerankerConfig> config, read_reranker_config(path));
  if (!config) return ok_status();
  if (components.dir.config.architecture != Architecture::kQwen3) {
    return error(StatusCode::kUnsupported, "it is a reranker of {}, whose prompt is not known; wanted one of Qwen3",
                 architecture_name(components.dir.config.architecture));
  }
  RerankFacts facts;
  if (std::holds_alternative<RerankHead>(*config)) {
    if (!components.facts.no_embeddings.empty())
      return error(StatusCode::kUnsupported, "{}", components.facts.no_embeddings);
    ASSIGN_OR_RETURN(facts.head, read_score_head(path, components.dir.config.hidden_size));
    components.facts.rerank = std::move(facts);
    return ok_status();
  }
  const auto& tokens = std::get<RerankTokens>(*config);
  for (const auto& [token, id] : {std::pair(&tokens.no, &facts.tokens[0]), {&tokens.yes, &facts.tokens[1]}}) {
    if (const auto* text = std::get_if<std::string>(token)) {
      *id = components.tokenizer->id_of(*text).value_or(-1);
    } else {
      *id = std::get<int32_t>(*token);
    }
    if (!components.tokenizer->has_token(*id)) {
      return invalid_argument("it compares the token {}, which its tokenizer does not have",
                              std::holds_alternative<std::string>(*token) ? "'" + std::get<std::string>(*token) + "'"
                                                                          : std::to_string(*id));
    }
  }
  components.facts.rerank = std::move(facts);
  return ok_status();
}

// Those of a range of layers have a file of their own.
std::string cache_name(const ModelOptions& options, const ModelConfig& config, LayerRange layers) {
  std::string name = directory_name(options.model);
  if (layers == LayerRange{0, config.layers}) return name;
  return fmt::format("{}-layers-{}-{}", name, layers.begin, layers.end);
}

// That bf16 activations meet bf16 weights: others are multiplied as ever, and the option would promise what is not so.
Status check_activations(const ModelOptions& options, const WeightStore& store) {
  if (options.activations != kernels::activations_name(kernels::Activations::kBF16)) return ok_status();
  if (options.quantize != "none") {
    return invalid_argument("--activations bf16 with --quantize {}; wanted one of them: it is for bf16 weights",
                            options.quantize);
  }
  // Matrices alone: norms and biases may be in bf16 anywhere, and the option does nothing for them.
  const std::vector<std::string> names = store.names();
  const auto is_bf16 = [&store](const std::string& name) {
    const SafetensorsEntry* tensor = store.find(name);
    return tensor->dtype == DType::kBF16 && tensor->shape.rank() == 2;
  };
  if (std::any_of(names.begin(), names.end(), is_bf16)) return ok_status();
  return invalid_argument("--activations bf16, and {} has no matrix in bf16; wanted f32", options.model);
}

// Matrices are quantized and packed one after the other; then the rest is brought into memory. `opened`: the files of
// options.model. `range`: nullopt: all layers.
Result<std::shared_ptr<const Model>> load_weights(const ModelOptions& options, WeightStore opened,
                                                  std::optional<LayerRange> range, const LoadProgress& progress,
                                                  uint64_t version) {
  ASSIGN_OR_RETURN(const ModelDir dir, open_model_dir(options.model));
  const LayerRange layers = range.value_or(LayerRange{0, dir.config.layers});
  RETURN_IF_ERROR(check_activations(options, opened));
  // Shared with the model: tensors that no kernel packs point into the files that it has mapped.
  auto store = std::make_shared<WeightStore>(std::move(opened));
  const auto report = [&progress](const char* what) {
    return [&progress, what](uint64_t done, uint64_t total) {
      progress(what, total ? static_cast<double>(done) / static_cast<double>(total) : 1.0);
    };
  };
  // LoadOptions has plain pointers to the pool and to the cache. Both are declared before load_model() and outlive it;
  // the model keeps neither.
  ThreadPool pool(options.threads > 0 ? options.threads : cpu_info().usable_cpus);
  LoadOptions load{.pool = &pool, .progress = report("loading weights")};
  ASSIGN_OR_RETURN(load.isa, kernels::resolve_isa());
  load.quantize = quantize_option(options);
  std::optional<PackedCache> cache;
  // The reference kernels pack nothing, so there is nothing to keep.
  if (!options.packed_cache_dir.empty() && load.isa != kernels::Isa::kRef) {
    cache.emplace(options.packed_cache_dir, cache_name(options, dir.config, layers), *store, load);
    load.packed_cache = &*cache;
  }
  ASSIGN_OR_RETURN(std::shared_ptr<const Model> model, load_model(dir.config, store, layers, version, load));
  // What was not packed is still on disk; without this the first requests would wait for its pages.
  RETURN_IF_ERROR(store->load_with_progress(report("loading weights")));
  if (options.check_weights) RETURN_IF_ERROR(store->check_finite(report("checking weights")));
  // Last: weights that were refused above leave no cache that a later start would trust.
  if (cache) cache->save(report("writing the packed cache"));
  return model;
}

// Those of the snapshot options.start_weights, as the version that they were.
Result<std::shared_ptr<const Model>> load_start_weights(const ModelOptions& options, const LoadProgress& progress,
                                                        std::optional<LayerRange> layers) {
  const std::string& folder = options.start_weights;
  ASSIGN_OR_RETURN(const std::optional<SnapshotManifest> manifest, read_snapshot_manifest(folder));
  if (!manifest) return error(StatusCode::kNotFound, "{} has no {}; wanted a snapshot", folder, kSnapshotManifestName);
  ASSIGN_OR_RETURN(WeightStore store, WeightStore::open(folder));
  ModelOptions uncached = options;
  uncached.packed_cache_dir.clear();  // it is the model's
  ASSIGN_OR_RETURN(std::shared_ptr<const Model> model,
                   load_weights(uncached, std::move(store), layers, progress, manifest->version));
  // A snapshot that changed on disk would serve other weights under the version that clients know.
  if (model->weights_checksum() == manifest->weights_checksum) return model;
  return invalid_argument("{}: its weights have the checksum {:016x}; wanted {:016x}, as {} has it", folder,
                          model->weights_checksum(), manifest->weights_checksum, kSnapshotManifestName);
}

// `path` without links and dots; empty: there is no such file.
std::string canonical(const std::string& path) {
  std::error_code failed;
  const std::filesystem::path clean = std::filesystem::canonical(path, failed);
  return failed ? "" : clean.string();
}

Status check_weights_folder(const ModelOptions& options, const std::string& path) {
  // Compared without links and dots, so that no request leaves the root by them.
  const std::string folder = canonical(path);
  if (folder.empty()) return error(StatusCode::kNotFound, "{} is not there; wanted a model folder", path);
  if (folder == canonical(options.model)) return ok_status();
  for (const std::string& given : {options.weights_root, options.weights_snapshot_dir}) {
    const std::string root = given.empty() ? "" : canonical(given);
    if (!root.empty() && folder.starts_with(root.ends_with('/') ? root : root + "/")) return ok_status();
  }
  return error(StatusCode::kPermissionDenied, "{} is not below --weights-root ({}), and is not the serving model", path,
               options.weights_root.empty() ? "not set" : options.weights_root);
}

// A folder without a description of its processor is prepared for as the serving one.
Status check_same_media(const MediaFacts& serves, const std::string& path, const ModelConfig& config) {
  ASSIGN_OR_RETURN(const MediaFacts given, read_media_facts(path, config));
  const auto differs = [](const auto& a, const auto& b) { return a && b && !(a->patches == b->patches); };
  const bool samples = given.videos && serves.videos && !(given.videos->sampling == serves.videos->sampling);
  if (differs(given.pictures, serves.pictures) || differs(given.videos, serves.videos) || samples) {
    return invalid_argument("{}: its processor prepares pictures or videos otherwise; wanted as at the start", path);
  }
  if (given.audio && serves.audio && !(given.audio->mel == serves.audio->mel)) {
    return invalid_argument("{}: its processor prepares audio otherwise; wanted as at the start", path);
  }
  return ok_status();
}

// What can never fit is refused: the kernel would end this process while it loads, again and again. What does not fit
// now may fit in a moment. Quantized weights are smaller than their file, and those of a packed cache stay on the disk.
Status check_memory_to_start(const ModelOptions& options, uint64_t bytes) {
  constexpr const char* kWanted =
      "wanted --quantize q8_0 or q4_0, a smaller model, or its layers on several hosts (docs/layers.md)";
  const MemoryInfo memory = memory_info();
  // How much quantizing or a cache saves is known after the load alone, so nothing is refused on their account.
  const bool other_size = options.quantize != "none" || !options.packed_cache_dir.empty();
  if (other_size || bytes <= memory.available_bytes) return ok_status();
  if (bytes > memory.total_bytes) {
    return invalid_argument("the weights have {} MiB, and this process may have {} in all; {}", bytes >> 20,
                            memory.total_bytes >> 20, kWanted);
  }
  LOG_WARNING("the weights have {} MiB and {} MiB are free: the kernel ends this process where memory runs out; {}",
              bytes >> 20, memory.available_bytes >> 20, kWanted);
  return ok_status();
}

// FrozenTensors let a folder leave a part out, which serves on. A head belongs to the weights that it was trained with:
// only a snapshot of the serving model may lack it, for it holds what computes alone.
Status check_score_head(const ModelOptions& serving, const std::string& path, const WeightStore& store) {
  if (store.contains(kScoreHeadName)) return ok_status();
  ASSIGN_OR_RETURN(const std::optional<SnapshotManifest> snapshot, read_snapshot_manifest(path));
  if (snapshot) {
    ASSIGN_OR_RETURN(const uint64_t base, base_model_hash(serving.model));
    if (snapshot->tensors_hash == base) return ok_status();
  }
  return error(StatusCode::kNotFound, "{}: has no {}; wanted the one that serves", path, kScoreHeadName);
}

Status check_memory_for(uint64_t bytes) {
  const uint64_t available = memory_info().available_bytes;
  if (bytes <= available) return ok_status();
  return error(StatusCode::kResourceExhausted,
               "the new weights have {} bytes and {} are free; wanted as many free as they have", bytes, available);
}

}  // namespace

Result<std::shared_ptr<const Model>> load_weights(const ModelOptions& options, const LoadProgress& progress,
                                                  std::optional<LayerRange> layers) {
  if (starts_from_snapshot(options)) return load_start_weights(options, progress, layers);
  ASSIGN_OR_RETURN(WeightStore store, WeightStore::open(options.model));
  // A range of layers reads a part of the files, whose size is no measure of it.
  if (!layers) RETURN_IF_ERROR(check_memory_to_start(options, store.total_bytes()));
  return load_weights(options, std::move(store), layers, progress, 1);
}

Status read_frozen_tensors(const ModelOptions& options, FrozenParts parts, FrozenTensors& frozen) {
  if (!parts.any()) return ok_status();
  ASSIGN_OR_RETURN(WeightStore store, WeightStore::open(options.model));
  ThreadPool pool(options.threads > 0 ? options.threads : cpu_info().usable_cpus);
  ASSIGN_OR_RETURN(FrozenTensors read, FrozenTensors::read(store, parts, pool));
  frozen.merge(std::move(read));
  return ok_status();
}

MakeWeights make_weights_of(const ModelOptions& serving, const ModelConfig& config, const MediaFacts& media,
                            std::shared_ptr<const FrozenTensors> frozen, CheckFolder check) {
  return [serving, config, media, frozen = std::move(frozen), check = std::move(check)](
             const std::string& given, uint64_t version) -> Result<std::shared_ptr<const Model>> {
    const std::string& path = given.empty() ? weights_folder(serving) : given;
    RETURN_IF_ERROR(check_weights_folder(serving, path));
    ASSIGN_OR_RETURN(const ModelDir dir, open_model_dir(path));
    // From the cheapest check to the dearest: configurations of a few KiB, then sizes, then the frozen tensors' bytes.
    // A wrong folder is refused before it takes memory from requests.
    RETURN_IF_ERROR(check_same_config(dir.config, config).with_prefix(path));
    ASSIGN_OR_RETURN(WeightStore store, WeightStore::open(path));
    RETURN_IF_ERROR(check_memory_for(store.total_bytes()));
    RETURN_IF_ERROR(check_same_media(media, path, config));
    if (config.score_head) RETURN_IF_ERROR(check_score_head(serving, path, store));
    if (check) RETURN_IF_ERROR(check(path).with_prefix(path));
    // One thread: requests are computed meanwhile, and their threads must not wait for this one.
    ThreadPool pool(1);
    if (frozen) RETURN_IF_ERROR(frozen->compare(store, pool).with_prefix(path));
    ModelOptions options = serving;
    options.model = path;
    options.threads = 1;
    options.packed_cache_dir.clear();  // it is that of the weights of the start
    return load_weights(
        options, std::move(store), std::nullopt, [](const std::string&, double) {}, version);
  };
}

MakeLiveWeights make_live_weights_of(const ModelOptions& options, std::shared_ptr<const FrozenTensors> frozen) {
  return [options, frozen = std::move(frozen)](
             std::shared_ptr<const Model> serving,
             const std::vector<TensorSpec>& tensors) -> Result<std::unique_ptr<LiveWeights>> {
    LoadOptions load{.quantize = quantize_option(options)};
    ASSIGN_OR_RETURN(load.isa, kernels::resolve_isa());
    auto weights = std::make_unique<LiveWeights>(std::move(serving), load, frozen);
    RETURN_IF_ERROR(weights->check(tensors));
    // By the announced sizes: no byte of the weights has been sent yet.
    uint64_t bytes = 0;
    for (const TensorSpec& tensor : tensors) bytes += tensor.size_bytes();
    RETURN_IF_ERROR(check_memory_for(bytes));
    return weights;
  };
}

WriteSnapshot write_snapshot_of(const ModelOptions& options) {
  if (options.weights_snapshot_dir.empty()) return nullptr;
  return [options](const Model& model, const std::string& label, const std::atomic<bool>& stop) {
    return write_snapshot(model, options, label, stop);
  };
}

Result<TextComponents> load_text_components(const ModelOptions& options, const std::string& served_name) {
  TextComponents components;
  const std::string& path = options.model;
  ASSIGN_OR_RETURN(components.dir, open_model_dir(path));
  if (options.context_length > components.dir.config.max_position_embeddings) {
    return invalid_argument("--context-length is {}; wanted at most {}, the model's own", options.context_length,
                            components.dir.config.max_position_embeddings);
  }
  ASSIGN_OR_RETURN(components.tokenizer, load_tokenizer(path));
  // A template that does not parse costs the chat endpoint alone.
  auto chat_template = load_chat_template(path);
  if (chat_template.ok()) {
    components.chat_template = std::move(chat_template).value();
  } else {
    LOG_WARNING("no chat: {}", chat_template.status().message());
  }
  if (components.tokenizer->vocab_size() > components.dir.config.vocab_size) {
    LOG_WARNING("the tokenizer has ids up to {}, the model's embedding {} rows: the ids above it are refused",
                components.tokenizer->vocab_size() - 1, components.dir.config.vocab_size);
  }
  components.eos_token_ids = components.dir.generation.eos_token_ids;
  if (const auto eos = components.tokenizer->eos_id()) components.eos_token_ids.push_back(*eos);
  if (!components.dir.gguf.empty()) {
    // A GGUF file names one end token, and a chat model may end its turn by another one.
    for (const int32_t id : end_tokens_by_name(*components.tokenizer)) components.eos_token_ids.push_back(id);
  }
  // The files name mostly the same tokens.
  std::sort(components.eos_token_ids.begin(), components.eos_token_ids.end());
  components.eos_token_ids.erase(std::unique(components.eos_token_ids.begin(), components.eos_token_ids.end()),
                                 components.eos_token_ids.end());
  if (const auto& others = components.dir.generation.not_followed; !others.empty()) {
    LOG_WARNING("{}/generation_config.json: {} not followed; a request sets what it wants itself (docs/api.md)", path,
                fmt::join(others, ", "));
  }
  components.facts = make_facts(options, served_name, components);
  // Of these two an error is no reason not to serve: it becomes the message of the endpoint that needs the file.
  if (const Result<PoolingConfig> pooling = read_pooling_config(path); pooling.ok()) {
    components.facts.mean_pooling = pooling->mean;
    components.facts.normalizes = pooling->normalizes;
  } else {
    components.facts.no_embeddings = pooling.status().message();
  }
  if (const Status reranker = find_reranker(path, components); !reranker.ok()) {
    components.facts.no_reranking = reranker.message();
  }
  ASSIGN_OR_RETURN(components.facts.media, read_media_facts(path, components.dir.config));
  RETURN_IF_ERROR(find_dialects(options, components));
  // A token stands for no more bytes than the longest one has, so a longer text has more tokens than the context. It is
  // refused by its size, before a tokenizer spends time on it.
  components.max_prompt_bytes = std::max(kMinPromptBytes, static_cast<std::size_t>(components.facts.context_length) *
                                                              longest_token_bytes(*components.tokenizer));
  return components;
}

std::optional<DType> quantize_option(const ModelOptions& options) {
  if (options.quantize == "q8_0") return DType::kQ8_0;
  if (options.quantize == "q4_0") return DType::kQ4_0;
  return std::nullopt;
}

SchedulerOptions scheduler_options(const ModelOptions& options, std::vector<int32_t> eos_token_ids) {
  SchedulerOptions out;
  out.max_running_requests = options.max_running_requests;
  out.max_queued_requests = options.max_queued_requests;
  out.chunked_prefill_tokens = options.chunked_prefill_tokens;
  out.max_decode_gap_ms = options.max_decode_gap_ms;
  out.max_skips = options.max_skips;
  out.conservativeness = options.schedule_conservativeness;
  // The command line knows these names; what it does not, stays at its default.
  if (auto policy = parse_policy(options.schedule_policy); policy.ok()) out.policy = *policy;
  if (auto eviction = parse_eviction_strategy(options.eviction_policy); eviction.ok()) out.cache.eviction = *eviction;
  if (auto write = parse_write_policy(options.kv_host_write_policy); write.ok()) out.cache.write_policy = *write;
  out.priority_preemption_gap = options.priority_preemption_gap;
  out.overlap = options.overlap == "on";
  out.prefix_cache = options.prefix_cache;
  out.cache.events = !options.kv_events.empty();
  out.eos_token_ids = std::move(eos_token_ids);
  return out;
}

}  // namespace millrace
