// From a model folder to the talker's runner and the vocoder.
#include <utility>

#include "base/cpu_info.h"
#include "base/xxh3.h"
#include "formats/weights.h"
#include "models/model.h"
#include "runner/model_runner.h"
#include "stages/generating/kv_sizes.h"
#include "stages/generating/loading.h"
#include "stages/speech/speech_workers.h"
#include "stages/speech/talker_rows.h"

namespace millrace {
namespace {

constexpr int kTalkerContext = 65536;  // rows at most: 87 minutes of sound

using Report = std::function<void(uint64_t done, uint64_t total)>;

Report report_to(const LoadProgress& progress, const char* what) {
  return [&progress, what](uint64_t done, uint64_t total) {
    progress(what, total ? static_cast<double>(done) / static_cast<double>(total) : 1.0);
  };
}

int threads_of(const ModelOptions& options) { return options.threads > 0 ? options.threads : cpu_info().usable_cpus; }

// The rows that are asked for are read from the file; the table is the thinker's too, and not packed a second time. It
// is read once for its checksum, which is returned.
Result<uint64_t> read_embedding(const ModelOptions& options, const TalkerConfig& config, ThreadPool& pool,
                                TalkerParts& parts) {
  ASSIGN_OR_RETURN(const ModelDir dir, open_model_dir(options.model));
  ASSIGN_OR_RETURN(WeightStore opened, WeightStore::open(options.model));
  auto store = std::make_shared<WeightStore>(std::move(opened));
  if (dir.config.hidden_size != config.thinker_hidden_size) {
    return invalid_argument("talker_config: thinker_hidden_size is {}; wanted the thinker's hidden_size, {}",
                            config.thinker_hidden_size, dir.config.hidden_size);
  }
  const std::pair<const char*, int32_t> ids[] = {{"tts_pad_token_id", config.turns.tts_pad},
                                                 {"tts_bos_token_id", config.turns.tts_bos},
                                                 {"tts_eos_token_id", config.turns.tts_eos}};
  for (const auto& [name, id] : ids) {
    if (id < dir.config.vocab_size) continue;
    return invalid_argument("{} is {}; wanted 0 to {}, an id of the thinker", name, id, dir.config.vocab_size - 1);
  }
  auto table = std::make_shared<WeightTable>();
  WeightReader reader(store, {.pool = &pool}, *table);
  parts.thinker_embedding = reader.tensor(kEmbeddingName, {dir.config.vocab_size, dir.config.hidden_size});
  RETURN_IF_ERROR(reader.status());
  store->release_rows(kEmbeddingName, dir.config.vocab_size);
  parts.keeps_weights = table;
  return store->checksum();
}

Result<LoadedTalker> load_talker(const ModelOptions& options, const TalkerConfig& config,
                                 const LoadProgress& progress) {
  const Report report = report_to(progress, "loading the talker");
  ASSIGN_OR_RETURN(WeightStore opened, WeightStore::open(options.model, MapMode::kMap, FolderPart::kTalker));
  auto store = std::make_shared<WeightStore>(std::move(opened));
  ThreadPool pool(threads_of(options));
  LoadOptions load{.pool = &pool, .progress = report};
  ASSIGN_OR_RETURN(load.isa, kernels::resolve_isa());
  load.quantize = quantize_option(options);
  ASSIGN_OR_RETURN(std::shared_ptr<const Model> model, load_model(config.text, store, 1, load));
  TalkerParts parts;
  ASSIGN_OR_RETURN(parts.predictor, CodePredictor::load(config, store, load));
  ASSIGN_OR_RETURN(parts.text, TalkerProjection::load(TalkerProjection::Kind::kText, config, store, load));
  ASSIGN_OR_RETURN(parts.media, TalkerProjection::load(TalkerProjection::Kind::kMedia, config, store, load));
  ASSIGN_OR_RETURN(const uint64_t embedding, read_embedding(options, config, pool, parts));
  RETURN_IF_ERROR(store->load_with_progress(report));
  ASSIGN_OR_RETURN(RunnerOptions runner, runner_options(config.text, options));
  runner.row_source = std::make_shared<TalkerRows>(config, std::move(parts));
  ASSIGN_OR_RETURN(auto made, ModelRunner::make(std::move(model), std::move(runner)));
  const uint64_t sums[] = {store->checksum(), embedding};
  FieldsChecksum sum;
  sum.add(sums, sizeof(sums));
  clear_upper_vectors();
  return LoadedTalker{std::move(made), sum.value()};
}

// KV memory, context and activations of the command line are meant for the thinker.
ModelOptions talker_options(const ModelOptions& options) {
  ModelOptions out = options;
  out.kv_gib = out.kv_host_gib = 0;
  out.context_length = kTalkerContext;
  out.activations = "f32";
  out.prefix_cache = false;
  out.kv_events.clear();
  return out;
}

}  // namespace

TalkParts talk_parts(const ModelOptions& given, const SpeechConfig& config) {
  const ModelOptions options = talker_options(given);
  TalkParts parts{.config = config, .options = scheduler_options(options, {config.talker.codec_eos})};
  parts.options.suppressed_token_ids = suppressed_codes(config.talker);
  parts.load = [options, talker = config.talker](const LoadProgress& progress) {
    return load_talker(options, talker, progress);
  };
  return parts;
}

LoadVocoder load_vocoder(const ModelOptions& options, const SpeechConfig& config) {
  return [options, vocoder = config.vocoder](const LoadProgress& progress) -> Result<LoadedVocoder> {
    const Report report = report_to(progress, "loading the vocoder");
    ASSIGN_OR_RETURN(WeightStore opened, WeightStore::open(options.model));
    auto store = std::make_shared<WeightStore>(std::move(opened));
    LoadedVocoder out{.pool = std::make_shared<ThreadPool>(threads_of(options))};
    LoadOptions load{.pool = out.pool.get(), .progress = report};
    ASSIGN_OR_RETURN(load.isa, kernels::resolve_isa());
    ASSIGN_OR_RETURN(out.model, Code2Wav::load(vocoder, store, load));
    RETURN_IF_ERROR(store->load_with_progress(report));
    out.ops = kernels::make_ops(load.isa, *out.pool);
    out.weights_checksum = store->checksum();
    return out;
  };
}

}  // namespace millrace
