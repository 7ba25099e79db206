#include "app/model_workers.h"

#include <filesystem>

#include "api/prompt_values.h"
#include "app/model_source.h"
#include "app/options.h"
#include "app/range_processes.h"
#include "app/transfer_sockets.h"
#include "base/nearest.h"
#include "models/model_text.h"
#include "pipeline/text_pipeline.h"
#include "stages/generating/load_runner.h"
#include "stages/generating/loading.h"
#include "stages/generating/text_checksum.h"
#include "stages/generating/token_values.h"
#include "stages/generating/weight_snapshot.h"
#include "stages/media/media_facts.h"
#include "stages/media/remote_media.h"
#include "stages/media/tower_model.h"
#include "stages/speech/speech_workers.h"

namespace millrace {
namespace {

using Names = std::vector<std::string_view>;
using Slot = Library::WorkerSlot;

// Options of the server, not of a stage: these are not among the args of `generate`.
constexpr std::string_view kNotOfStages[] = {"kv-events",     "kv-events-anywhere", "log-level",
                                             "start-weights", "talker-threads",     "vocoder-threads"};

Result<std::string> option_text(std::string_view key, const Value& value) {
  if (const auto* text = value.get<std::string>()) return *text;
  if (const auto* integer = value.get<int64_t>()) return fmt::format("{}", *integer);
  if (const auto* number = value.get<double>()) return fmt::format("{}", *number);
  if (const auto* boolean = value.get<bool>()) return std::string(*boolean ? "true" : "false");
  return invalid_argument("{} is a {}; wanted a text, a number or a boolean", key, kind_name(value));
}

// What of `args` the command line knows. `allowed` empty: everything that a stage may have.
Result<ModelOptions> model_options(const Value& args, const Names& allowed) {
  Names known = allowed;
  const std::vector<std::string> names = model_option_names();
  if (known.empty()) {
    for (const std::string& name : names) {
      const bool fits = std::find(std::begin(kNotOfStages), std::end(kNotOfStages), name) == std::end(kNotOfStages);
      if (fits) known.push_back(name);
    }
  }
  ModelOptions out;
  const ValueMap none;
  const ValueMap& map = args.is<ValueMap>() ? *args.get<ValueMap>() : none;
  for (const auto& [key, value] : map) {
    std::string name = key;
    std::replace(name.begin(), name.end(), '_', '-');
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      std::string nearest = suggestion(name, known);
      std::replace(nearest.begin(), nearest.end(), '-', '_');
      return invalid_argument("'{}' is unknown{}", key.substr(0, 64), nearest);
    }
    ASSIGN_OR_RETURN(const std::string text, option_text(key, value));
    RETURN_IF_ERROR(set_model_option(out, name, text).with_prefix(key));
  }
  if (out.model.empty()) {
    return invalid_argument("model is missing; wanted a Hugging Face model directory, or ORG/NAME of the cache");
  }
  // What is neither a path nor in the cache stays as it is: a file may be checked and drawn on a host without the
  // model.
  if (auto found = look_up_model(out.model, ""); found.ok() && !found->wanted) {
    out.model = std::move(found->source.path);
    out.hub_name = std::move(found->source.name);
  }
  RETURN_IF_ERROR(validate(ServeOptions{.model = out}));
  return out;
}

struct TokenizeArgs {
  ModelOptions options;
  bool chat = false;
};

Result<TokenizeArgs> tokenize_args(const Value& args) {
  TokenizeArgs out;
  if (const Value* chat = args.find("chat")) {
    if (!chat->is<bool>()) return invalid_argument("chat is a {}; wanted a boolean", kind_name(*chat));
    out.chat = *chat->get<bool>();
  }
  ASSIGN_OR_RETURN(out.options, model_options(without(args, {"chat"}), {"model", "context-length"}));
  return out;
}

// nullopt: there are no args, and the command line's are taken.
using ArgsOptions = std::optional<ModelOptions>;

Result<ArgsOptions> options_of_args(const Value& args, const Names& allowed) {
  if (!args.is<ValueMap>()) return ArgsOptions();
  ASSIGN_OR_RETURN(ModelOptions options, model_options(args, allowed));
  return ArgsOptions(std::move(options));
}

Result<ArgsOptions> generate_args(const Value& args) { return options_of_args(args, {}); }
Result<ArgsOptions> layers_args(const Value& args) {
  return options_of_args(args, {"model", "threads", "quantize", "packed-cache-dir", "kv-dtype", "activations", "kv-gib",
                                "context-length"});
}
Result<ArgsOptions> encode_args(const Value& args) {
  return options_of_args(args, {"model", "threads", "quantize", "activations"});
}
Result<ArgsOptions> detokenize_args(const Value& args) { return options_of_args(args, {"model"}); }
Result<ArgsOptions> speech_args(const Value& args) {
  return options_of_args(args, {"model", "threads", "quantize", "page-size", "kv-dtype", "max-running-requests",
                                "max-queued-requests", "chunked-prefill-tokens", "overlap"});
}

Result<ModelOptions> or_command_line(ArgsOptions from_args, const ModelOptions& command_line) {
  if (from_args) return std::move(*from_args);
  if (!command_line.model.empty()) return command_line;
  return invalid_argument("its args name no model, and --model is missing; wanted one of them");
}

// ---- the workers

using Made = Result<std::unique_ptr<Worker>>;

Made make_tokenize(const Value& args, const Slot&, const ModelOptions&) {
  ASSIGN_OR_RETURN(const TokenizeArgs from_args, tokenize_args(args));
  ASSIGN_OR_RETURN(TextComponents components, load_text_components(from_args.options));
  ASSIGN_OR_RETURN(const uint64_t text, text_checksum(from_args.options.model));
  return make_tokenize_worker(
      PromptEncoder(components.tokenizer, components.chat_template, components.max_prompt_bytes),
      [chat = from_args.chat](const Value& payload) { return api::read_prompt(payload, chat); }, text);
}

// The socket has its own context: those of the stage belong to the process.
MakeKvEvents make_kv_events(const ModelOptions& options, uint32_t replica) {
  if (options.kv_events.empty()) return {};
  return [options, replica]() -> Result<std::unique_ptr<KvEventStream>> {
    auto zmq = std::make_shared<ZmqContext>();
    ASSIGN_OR_RETURN(auto socket, EventSocket::bind(*zmq, options.kv_events, options.kv_events_anywhere));
    return std::unique_ptr<KvEventStream>(new KvEventStream(std::move(socket), replica, std::move(zmq)));
  };
}

// With the stage that computes prompts, or has them computed, by the pipeline's file; else with the servers that
// requests name.
MakeTransfers make_transfers(const ModelOptions& options, const Slot& slot) {
  const OpenTransferLinks& of_pipeline = slot.transfers;
  const bool listens = !options.kv_transfer_listen.empty();
  if (!of_pipeline && !listens) return {};
  return [options, of_pipeline, spans = slot.spans](
             GeneratingEngine& engine,
             std::optional<transfer::PrefillJobs> jobs) -> Result<std::unique_ptr<transfer::TransferService>> {
    ASSIGN_OR_RETURN(wire::KvFormat format, kv_format(options, engine.model()));
    ASSIGN_OR_RETURN(
        transfer::TransferLinks links,
        of_pipeline ? of_pipeline() : listening_links(options.kv_transfer_listen, options.kv_transfer_key_file));
    links.min_tokens = options.min_remote_tokens;
    links.spans = spans;
    const auto checksum = [&engine](uint64_t version) { return engine.weights_checksum(version); };
    return std::make_unique<transfer::TransferService>(engine.scheduler(), std::move(links), std::move(format),
                                                       checksum, std::move(jobs));
  };
}

// Every scheduler of every server may have the folder: files are named by what they hold.
MakeSavedPrefixes make_saved_prefixes(const ModelOptions& options) {
  if (options.kv_disk_dir.empty()) return {};
  return [options](GeneratingEngine& engine) -> Result<std::unique_ptr<kv_disk::SavedPrefixes>> {
    constexpr double kGiB = 1024.0 * 1024 * 1024;
    ASSIGN_OR_RETURN(auto folder,
                     kv_disk::PageFolder::open(options.kv_disk_dir, static_cast<uint64_t>(options.kv_disk_gib * kGiB)));
    ASSIGN_OR_RETURN(const wire::KvFormat at_start, kv_format(options, engine.model()));
    const Status supported = engine.scheduler().transfers().supported();
    if (supported.code() == StatusCode::kUnsupported) return supported.with_prefix("--kv-disk-dir");
    // Without a checksum of the weights nothing would be found again.
    auto format = [&engine, at_start]() -> Result<wire::KvFormat> {
      wire::KvFormat now = at_start;
      now.weights_checksum = engine.weights_checksum(engine.scheduler().facts().weight_version);
      if (now.weights_checksum != 0) return now;
      return error(StatusCode::kUnavailable, "the checksum of the weights is not known");
    };
    return std::make_unique<kv_disk::SavedPrefixes>(engine.scheduler().transfers(), std::move(format),
                                                    std::make_unique<kv_disk::PageIo>(std::move(folder)));
  };
}

// The options of a stage that has the model: those of its args, or the command line's, with its share of the machine.
Result<ModelOptions> generating_options(const Value& args, const Slot& slot, const ModelOptions& command_line) {
  ASSIGN_OR_RETURN(ArgsOptions from_args, generate_args(args));
  // What the file sets of the stage's resources, where nothing else does.
  const bool has_args = from_args.has_value();
  ASSIGN_OR_RETURN(ModelOptions options, or_command_line(std::move(from_args), command_line));
  const bool threads = has_args ? args.find("threads") != nullptr : options.threads != 0;
  const bool kv_gib = has_args ? args.find("kv_gib") != nullptr : options.kv_gib != 0;
  if (!threads) options.threads = slot.threads;
  if (!kv_gib) options.kv_gib = static_cast<double>(slot.memory_mib) / 1024;
  if (slot.transfers && options.pp > 1) {
    return invalid_argument("--pp is {}, and the stage transfers KV pages; wanted one of them", options.pp);
  }
  if (slot.transfers && !options.prefix_cache) {
    return invalid_argument(
        "--no-prefix-cache, and the stage transfers KV pages; wanted a prefix cache, to which they come");
  }
  return share_of(options, static_cast<int>(slot.nth), slot.of);
}

// Where the stage streams to one that speaks. A range of layers has no rows of media to give.
Result<SpeechTarget> speech_target_of(const ModelOptions& options, const Slot& slot, const ModelConfig& thinker,
                                      bool split) {
  for (const auto& [stage, worker] : slot.stream_to) {
    if (worker != kTalkWorker) continue;
    ASSIGN_OR_RETURN(const auto speech, read_speech_config(options));
    if (!speech) continue;
    ASSIGN_OR_RETURN(SpeechTarget target, speech_target(*speech, thinker, stage));
    if (split) target.layer = 0;
    return target;
  }
  return SpeechTarget();
}

Result<wire::EncoderFacts> encoder_facts(const ModelOptions& options) {
  ASSIGN_OR_RETURN(const uint64_t hash, model_hash(options));
  ASSIGN_OR_RETURN(std::string arithmetic, arithmetic_of(options));
  return wire::EncoderFacts{hash, std::move(arithmetic)};
}

// This program again; run_millrace() knows the command.
std::shared_ptr<const MediaDecoder> media_decoder() {
  std::error_code failed;
  const std::filesystem::path program = std::filesystem::canonical("/proc/self/exe", failed);
  return std::make_shared<MediaDecoder>(failed ? "" : program.string());
}

// The towers, here or in the stage that encodes for this one. `frozen`: what gets the tensors of a tower that is loaded
// here; null: nothing.
MakeMedia make_media_of(const ModelOptions& options, const ModelConfig& config, const MediaFacts& media,
                        const OpenTransferLinks& remote, std::shared_ptr<FrozenTensors> frozen) {
  if (!media.any()) return {};
  if (!remote) {
    return [options, config, media, frozen](const LoadProgress& progress) {
      return load_tower_model(options, config, media, media_decoder(), progress, frozen.get());
    };
  }
  return [options, config, remote](const LoadProgress&) -> Result<std::unique_ptr<MediaModel>> {
    ASSIGN_OR_RETURN(wire::EncoderFacts facts, encoder_facts(options));
    ASSIGN_OR_RETURN(transfer::TransferLinks links, remote());
    return make_remote_media(std::move(links), std::move(facts), config);
  };
}

// Why a stage keeps the weights that it was started with; empty: it does not.
std::string why_fixed(bool split) {
  return split ? "its layers are split; start the server again with the new weights" : "";
}

// Whether a folder describes the talker and the vocoder that serve; one with a thinker alone has none.
Result<CheckFolder> speech_check(const ModelOptions& options, const SpeechTarget& speech) {
  if (speech.stage.empty()) return CheckFolder();
  ASSIGN_OR_RETURN(const auto serves, read_speech_config(options));
  if (!serves) return CheckFolder();
  return CheckFolder([options, serves = *serves](const std::string& path) -> Status {
    ModelOptions folder = options;
    folder.model = path;
    ASSIGN_OR_RETURN(const auto speech, read_speech_config(folder));
    return speech ? check_same_speech(*speech, serves) : ok_status();
  });
}

Made make_generate(const Value& args, const Slot& slot, const ModelOptions& command_line) {
  ASSIGN_OR_RETURN(const ModelOptions options, generating_options(args, slot, command_line));
  ASSIGN_OR_RETURN(TextComponents components, load_text_components(options));
  ASSIGN_OR_RETURN(const uint64_t text, text_checksum(options.model));
  if (slot.chain && !options.kv_disk_dir.empty()) {
    return error(
        StatusCode::kUnsupported,
        "--kv-disk-dir, and the file gives the stage layers; wanted one of them: a range of layers keeps no KV");
  }
  if (slot.chain && options.pp > 1) {
    return invalid_argument("--pp is {}, and the file gives the stage layers; wanted one of them", options.pp);
  }
  const bool split = options.pp > 1 || slot.chain;  // takes no new weights
  const MediaFacts& media = components.facts.media;
  const ModelConfig& config = components.dir.config;
  const std::string why = why_fixed(split);
  const bool fixed = !why.empty();
  ASSIGN_OR_RETURN(SpeechTarget speech, speech_target_of(options, slot, config, split));
  ASSIGN_OR_RETURN(CheckFolder check_speech, speech_check(options, speech));
  RETURN_IF_ERROR(check_snapshots(options));
  if ((fixed || config.vision) && !options.weights_snapshot_dir.empty()) {
    return error(StatusCode::kUnsupported,
                 "--weights-snapshot-dir is set, and this model's weights are not written; wanted a text model whose "
                 "layers are not split");
  }
  const auto frozen = std::make_shared<FrozenTensors>();
  const bool elsewhere = slot.features != nullptr || !media.pictures;  // the vision tower is loaded there, or not
  FrozenParts reads;
  if (!fixed) {
    reads = {.vision = config.vision && elsewhere,
             .audio = config.audio.has_value(),
             .speech = !speech.stage.empty(),
             .score = config.score_head};
  }
  return make_generate_worker(
      {.options = scheduler_options(options, components.eos_token_ids),
       .load = [load = make_load_runner(options, RangeProcesses::open, slot.chain), stage = slot.stage, frozen, reads,
                options](const LoadProgress& progress) -> Result<std::unique_ptr<Runner>> {
         Result<std::unique_ptr<Runner>> runner = load(progress);
         if (!runner.ok()) return runner.status().with_prefix(fmt::format("stage '{}'", stage));
         RETURN_IF_ERROR(read_frozen_tensors(options, reads, *frozen));
         return runner;
       },
       .tokenizer = components.tokenizer,
       .read_request = [facts = components.facts](const Value& payload) { return api::read_request(payload, facts); },
       .streams = slot.streams,
       .to_client = slot.to_client,
       .make_kv_events = make_kv_events(options, slot.replica),
       .make_media = make_media_of(options, config, media, slot.features, frozen),
       .make_weights = fixed ? MakeWeights() : make_weights_of(options, config, media, frozen, std::move(check_speech)),
       .live = {fixed ? MakeLiveWeights() : make_live_weights_of(options, frozen), slot.weights_rank,
                options.trainer_hosts, why},
       .write_snapshot = write_snapshot_of(options),
       .text_checksum = text,
       .make_transfers = make_transfers(options, slot),
       .speech = std::move(speech),
       .make_saved = make_saved_prefixes(options),
       .spans = slot.spans});
}

Made make_encode(const Value& args, const Slot& slot, const ModelOptions& command_line) {
  if (!slot.features) return internal_error("a stage that encodes media has no stage to encode them for");
  ASSIGN_OR_RETURN(ArgsOptions from_args, encode_args(args));
  const bool threads = from_args ? args.find("threads") != nullptr : command_line.threads != 0;
  ASSIGN_OR_RETURN(ModelOptions options, or_command_line(std::move(from_args), command_line));
  if (!threads) options.threads = slot.threads;
  ASSIGN_OR_RETURN(const ModelDir dir, open_model_dir(options.model));
  ASSIGN_OR_RETURN(const MediaFacts media, read_media_facts(options.model, dir.config));
  if (!media.any()) {
    return error(StatusCode::kUnsupported, "{} takes text only; wanted a model that takes pictures or audio",
                 options.model);
  }
  ASSIGN_OR_RETURN(const uint64_t text, text_checksum(options.model));
  ASSIGN_OR_RETURN(wire::EncoderFacts facts, encoder_facts(options));
  return make_encode_worker({.make_media = make_media_of(options, dir.config, media, nullptr, nullptr),
                             .open = slot.features,
                             .facts = std::move(facts),
                             .text_checksum = text});
}

Made make_prefill(const Value& args, const Slot& slot, const ModelOptions& command_line) {
  if (!slot.transfers) return internal_error("a stage that computes prompts has no stage to compute them for");
  ASSIGN_OR_RETURN(ModelOptions options, generating_options(args, slot, command_line));
  options.kv_events.clear();  // they are of the caches that requests meet
  ASSIGN_OR_RETURN(const ModelDir dir, open_model_dir(options.model));
  ASSIGN_OR_RETURN(const uint64_t text, text_checksum(options.model));
  const bool fixed = dir.config.vision || dir.config.audio;  // prompts with media are computed where they are sampled
  return make_prefill_worker({.options = scheduler_options(options, {}),
                              .load = make_load_runner(options, nullptr, nullptr),
                              .make_weights = fixed ? MakeWeights() : make_weights_of(options, dir.config, {}, nullptr),
                              .live = {fixed ? MakeLiveWeights() : make_live_weights_of(options, nullptr),
                                       slot.weights_rank, options.trainer_hosts},
                              .write_snapshot = write_snapshot_of(options),
                              .text_checksum = text,
                              .make_transfers = make_transfers(options, slot)});
}

Made make_layers(const Value& args, const Slot& slot, const ModelOptions& command_line) {
  ASSIGN_OR_RETURN(ArgsOptions from_args, layers_args(args));
  const bool threads = from_args ? args.find("threads") != nullptr : command_line.threads != 0;
  const bool kv_gib = from_args ? args.find("kv_gib") != nullptr : command_line.kv_gib != 0;
  ASSIGN_OR_RETURN(ModelOptions options, or_command_line(std::move(from_args), command_line));
  if (!threads) options.threads = slot.threads;
  if (!kv_gib) options.kv_gib = static_cast<double>(slot.memory_mib) / 1024;
  options = share_of(options, static_cast<int>(slot.nth), slot.of);
  ASSIGN_OR_RETURN(const uint64_t text, text_checksum(options.model));
  return make_layers_worker({.options = std::move(options), .chain = slot.chain, .text_checksum = text});
}

Made make_detokenize(const Value& args, const Slot& slot, const ModelOptions& command_line) {
  ASSIGN_OR_RETURN(ArgsOptions from_args, detokenize_args(args));
  ASSIGN_OR_RETURN(const ModelOptions options, or_command_line(std::move(from_args), command_line));
  ASSIGN_OR_RETURN(auto tokenizer, load_tokenizer(options.model));
  ASSIGN_OR_RETURN(const uint64_t text, text_checksum(options.model));
  return make_detokenize_worker(std::move(tokenizer), slot, text);
}

// Of one that is spoken, with the share of the machine that the stage has. `stage_threads`: the option of
// that stage's threads; args of the pipeline's file come before it.
Result<ModelOptions> speech_options(const Value& args, const Slot& slot, const ModelOptions& command_line,
                                    int ModelOptions::*stage_threads) {
  ASSIGN_OR_RETURN(ArgsOptions from_args, speech_args(args));
  const int of_args = from_args ? from_args->threads : 0;
  ASSIGN_OR_RETURN(ModelOptions options, or_command_line(std::move(from_args), command_line));
  options.threads = of_args != 0 ? of_args : options.*stage_threads != 0 ? options.*stage_threads : options.threads;
  if (options.threads == 0) options.threads = slot.threads;
  return share_of(options, static_cast<int>(slot.nth), slot.of);
}

Result<SpeechConfig> speech_config(const ModelOptions& options) {
  ASSIGN_OR_RETURN(std::optional<SpeechConfig> config, read_speech_config(options));
  if (config) return std::move(*config);
  return invalid_argument("{} has no talker or no vocoder; wanted a complete Qwen3-Omni, and --speech auto",
                          options.model);
}

Made make_talk(const Value& args, const Slot& slot, const ModelOptions& command_line) {
  ASSIGN_OR_RETURN(const ModelOptions options, speech_options(args, slot, command_line, &ModelOptions::talker_threads));
  ASSIGN_OR_RETURN(const SpeechConfig config, speech_config(options));
  return make_talk_worker(talk_parts(options, config));
}

Made make_vocode(const Value& args, const Slot& slot, const ModelOptions& command_line) {
  ASSIGN_OR_RETURN(const ModelOptions options,
                   speech_options(args, slot, command_line, &ModelOptions::vocoder_threads));
  ASSIGN_OR_RETURN(const SpeechConfig config, speech_config(options));
  return make_vocode_worker(load_vocoder(options, config));
}

using Make = Made (*)(const Value&, const Slot&, const ModelOptions&);

template <typename Parse>
void add(Library& library, const char* name, const ModelOptions& command_line, Make make, Parse parse) {
  library.workers[name] = [make, command_line](const Value& args, const Slot& slot) -> Made {
    Made made = make(args, slot, command_line);
    if (made.ok()) return made;
    return made.status().with_prefix(fmt::format("stage '{}'", slot.stage));
  };
  library.args_checks[name] = [parse](const Value& args) { return parse(args).status(); };
}

}  // namespace

Result<std::optional<ModelOptions>> generate_options(const Value& args) { return generate_args(args); }

void add_model_workers(Library& library, const ModelOptions& command_line) {
  add(library, "tokenize", command_line, make_tokenize, tokenize_args);
  add(library, "generate", command_line, make_generate, generate_args);
  add(library, "layers", command_line, make_layers, layers_args);
  add(library, "prefill", command_line, make_prefill, generate_args);
  add(library, "encode", command_line, make_encode, encode_args);
  add(library, "detokenize", command_line, make_detokenize, detokenize_args);
  add(library, "talk", command_line, make_talk, speech_args);
  add(library, "vocode", command_line, make_vocode, speech_args);
  library.short_calls.insert({"generate", "prefill", "encode", "detokenize", "talk"});
  library.with_weights.insert({"generate", "prefill"});
}

}  // namespace millrace
