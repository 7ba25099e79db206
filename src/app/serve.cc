// millrace serve: the HTTP server in front of a backend, from the first check of the model to the last drained request.

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <numeric>
#include <optional>

#include "api/pipelines.h"
#include "api/routes.h"
#include "app/commands.h"
#include "app/discovery.h"
#include "app/instance.h"
#include "app/keys.h"
#include "app/library.h"
#include "app/model_source.h"
#include "app/model_workers.h"
#include "app/output.h"
#include "app/process_limits.h"
#include "app/progress.h"
#include "app/request_traces.h"
#include "app/router/router.h"
#include "app/server_options.h"
#include "app/shutdown_watchdog.h"
#include "app/signals.h"
#include "app/text_service.h"
#include "app/unused_options.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/trace.h"
#include "http/server.h"
#include "pipeline/model_identity.h"
#include "pipeline/prefill_spec.h"
#include "pipeline/run_dir.h"
#include "pipeline/supervisor.h"
#include "pipeline/text_pipeline.h"
#include "stages/generating/loading.h"
#include "stages/generating/start_weights.h"
#include "stages/speech/speech_config.h"

namespace millrace {
namespace {

constexpr std::chrono::milliseconds kLastWordsMs{2000};  // to write what is already answered
constexpr int kBeforeQueue = 1024;  // requests that may be in the tokenizer or on their way to the scheduler's queue

// How to start this program from any folder: a user talks to the server from another terminal.
std::string program_path() {
  std::error_code error;
  const auto path = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? "millrace" : path.string();
}

void print_banner(const std::string& url, const ServeOptions& options, const ModelFacts& model) {
  const char* key = options.api_key.empty() ? "" : " -H 'Authorization: Bearer KEY'";
  const char* chat_key = options.api_key.empty() ? "" : " --api-key KEY";
  std::printf("\nMillrace %s serves %s at %s\n\n", kVersion, model.name.c_str(), url.c_str());
  if (model.has_chat_template) {
    if (options.web) std::printf("  Chat in a browser: %s/\n\n", url.c_str());
    // A model that takes pictures may know nothing else: models/demo-vl writes no stories.
    const char* const body =
        model.media.pictures
            ? R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "What is in this picture?"},
         {"type": "image_url", "image_url": {"url": "data:image/png;base64,'$(base64 -w0 PICTURE.png)'"}}]}]})"
            : R"({"messages": [{"role": "user", "content": "Tell me a short story about a dog."}]})";
    std::printf("  curl %s/v1/chat/completions%s -H 'Content-Type: application/json' \\\n    -d '%s'\n\n", url.c_str(),
                key, body);
    std::printf("  %s chat --url %s%s\n\n", program_path().c_str(), url.c_str(), chat_key);
  } else {
    std::printf(
        "  curl %s/v1/completions%s -H 'Content-Type: application/json' \\\n"
        "    -d '{\"prompt\": \"Once upon a time\", \"max_tokens\": 64}'\n\n",
        url.c_str(), key);
  }
  std::printf("Ctrl-C stops the server when the running requests are done.\n");
  std::fflush(stdout);
}

// What Ctrl-C has begun, for the one who pressed it.
void print_stopping(std::size_t live, const ServeOptions& options) {
  if (live > 0) {
    std::fprintf(stderr, "millrace: stopping when %zu %s done, after %d s at most; Ctrl-C again stops at once\n", live,
                 live == 1 ? "request is" : "requests are", options.drain_timeout_s);
  } else {
    std::fprintf(stderr, "millrace: stopping\n");
  }
}

// Of a person's command line: another start will not help.
int start_error(const Status& status) { return status.code() == StatusCode::kInternal ? 1 : kExitBadInput; }

void print_awaited(const std::string& awaited) {
  if (!awaited.empty()) std::fprintf(stderr, "millrace: waiting for stages of other hosts:\n%s", awaited.c_str());
}

void print_pipeline_banner(const std::string& url, const std::string& name, bool chat) {
  std::printf("\nMillrace %s runs the pipeline '%s' at %s\n\n", kVersion, name.c_str(), url.c_str());
  if (chat) std::printf("  Chat in a browser: %s/\n\n", url.c_str());
  std::printf(
      "  curl %s/v1/pipeline -H 'Content-Type: application/json' -d '{\"inputs\": {...}, \"stream\": true}'\n\n",
      url.c_str());
  std::printf("Ctrl-C stops the server when the running requests are done.\n");
  std::fflush(stdout);
}

// What loads, for the one who started the server: of several stages, the first that still does.
void show_loading(LoadingProgress& progress, const Health& health) {
  for (const wire::StageStatus& stage : health.stages) {
    if (stage.state != wire::StageState::kLoading || stage.incarnation == 0) continue;  // 0: never there
    return progress.update(stage);
  }
}

// Pages of ended requests that other servers were promised, as of the last heartbeat. Their leases bound it. A want
// whose request has not come, and will not, is no promise.
double promised_transfers(Instance& instance) {
  double open = 0;
  for (const wire::StageStatus& stage : instance.engine().health().stages) {
    for (const wire::Metric& metric : stage.metrics) {
      if (metric.name == "kv_transfers_open{end=prefill}") open += metric.value;
      if (metric.name == "kv_transfers_early") open -= metric.value;
    }
  }
  return open;
}

// What ends a server from outside.
struct ServerEnd {
  const sigset_t& signals;
  ShutdownWatchdog& limit;
  const Leadership* leadership;  // null: it leads whatever others do
};

// Another server leads, which takes the stages of other hosts.
bool superseded(const Leadership* leadership) { return leadership != nullptr && leadership->superseded().has_value(); }

// From the start until a signal has ended it, or another server that leads. Returns the exit code.
int serve_until_signal(Instance& instance, http::Server& server, const ServeOptions& options, const ServerEnd& ends,
                       const std::function<void()>& announce) {
  LoadingProgress progress(stderr);
  int exit_code = 0;
  for (bool announced = false; !stop_signal(ends.signals) && !superseded(ends.leadership) && exit_code == 0;) {
    if (instance.failed()) {
      if (!instance.status().ok()) print_error(instance.status());
      exit_code = kExitBadInput;
    }
    if (announced || exit_code != 0) continue;
    const Health health = instance.engine().health();
    show_loading(progress, health);
    if (!health.ready) continue;
    progress.finish();
    announce();
    announced = true;
  }
  // What is running may end within the limit, or until a second signal; everything new gets a 503.
  instance.drain();
  if (exit_code == 0 && options.parent == 0) print_stopping(instance.live_requests(), options);
  const int64_t end_ms = monotonic_ms() + int64_t{options.drain_timeout_s} * 1000;
  const auto works = [&] {
    return instance.live_requests() > 0 ||
           (!options.model.kv_transfer_listen.empty() && promised_transfers(instance) > 0);
  };
  while (exit_code == 0 && works() && monotonic_ms() < end_ms && !stop_signal(ends.signals)) {
  }
  if (exit_code == 0 && superseded(ends.leadership)) {
    print_error(error(StatusCode::kUnavailable,
                      "etcd was not reached for longer than the lease of {}, and {} leads now", options.discovery,
                      *ends.leadership->superseded()));
    exit_code = 1;  // started again, this one stands by
  }
  ends.limit.begin(kServerGraceMs, exit_code == 0 ? 1 : exit_code);  // where it does not get further than this
  instance.stop();
  server.drain(kLastWordsMs);
  server.stop();
  return exit_code;
}

// The folder of the socket is of the process that started this one; where that was killed, no other process removes it.
void remove_folder_of_parent(const ServeOptions& options) {
  if (options.parent <= 0 || parent_alive(options.parent)) return;
  ::unlink(options.uds.c_str());
  RunDir::remove(std::filesystem::path(options.uds).parent_path().string());
}

LeadOptions lead_options(const ServeOptions& options) {
  LeadOptions out{.single = options.placement == "single", .profile_folder = options.profile_dir};
  out.child.pipeline = options.pipeline;
  out.child.model.log_level = options.model.log_level;
  out.child.otlp_endpoint = options.otlp_endpoint;
  return out;
}

// A stage of this host that is silent is slow or hangs; --stall-restart-s is how long it may. One of another host
// has a lease as every stage has.
Result<CoordinatorOptions> text_coordinator_options(const ServeOptions& options, const PipelineSpec& spec) {
  constexpr int64_t kForEverMs = int64_t{1} << 40;
  CoordinatorOptions out{.stall_grace_ms = int64_t{options.stall_restart_s} * 1000};
  if (!spec.over_hosts() && spec.lease_ms == 0)
    out.lease_ms = options.stall_restart_s > 0 ? out.stall_grace_ms : kForEverMs;
  if (options.placement == "single" && !spec.over_hosts()) {  // no process ever joins
    out.spec_hash = spec.hash();
    return out;
  }
  const bool generates = generating_stage(spec).host.empty();
  ASSIGN_OR_RETURN(const ModelIdentity identity, identify(spec, options.model, generates));
  out.spec_hash = identity.packed();
  // A process that was started again must not serve what has replaced the model's files meanwhile. Where this host has
  // no weights, those of the first that joins count.
  out.same_spec = [known = identity](uint64_t theirs, uint64_t) mutable {
    const ModelIdentity joiner = ModelIdentity::unpack(theirs);
    RETURN_IF_ERROR(same_identity(joiner, known));
    if (known.weights == 0) known.weights = joiner.weights;
    return ok_status();
  };
  return out;
}

// What the command line changes of a text pipeline: options are checked, and applied to the spec.
Status fit_text_pipeline(ServeOptions& options, PipelineSpec& spec, LeadOptions& lead) {
  const std::string file =
      options.pipeline.empty() ? builtin_file(text_shape(spec)->talk != nullptr) : options.pipeline;
  if (options.model.model.empty()) {
    return invalid_argument(
        "--model is missing; wanted a Hugging Face model directory, a GGUF file, or ORG/NAME of a hub");
  }
  RETURN_IF_ERROR(check_text_pipeline(spec, file, options.dp));
  if (options.model.pp > 1 && generating_stage(spec).layers) {
    return invalid_argument("{}:{}: --pp is {}, and stage '{}' has layers; wanted one of them", file,
                            generating_stage(spec).line_of("layers"), options.model.pp, generating_stage(spec).name);
  }
  const bool children = std::any_of(spec.stages.begin(), spec.stages.end(), [](const StageSpec& stage) {
    return stage.host.empty() && stage.process != kServerProcess;
  });
  if (options.placement.empty()) options.placement = children ? "processes" : "single";
  lead.single = options.placement == "single";
  lead.child.model = options.model;
  lead.child.replicas = options.dp;
  if (options.dp == 0) options.dp = generating_stage(spec).replicas;
  RETURN_IF_ERROR(validate(options));
  ASSIGN_OR_RETURN(lead.coordinator, text_coordinator_options(options, spec));
  override_replicas(spec, lead.child.replicas, options.dp_policy);
  if (options.prefill > 0) RETURN_IF_ERROR(set_prefill_replicas(spec, file, options.prefill));
  lead.child.prefill = options.prefill;
  spec.request_timeout_s = options.request_timeout_s;
  const int each = options.model.max_running_requests + options.model.max_queued_requests;
  spec.max_requests = options.dp * each + kBeforeQueue;
  return ok_status();
}

struct TextParts {
  TextComponents components;
  TextServiceOptions options;
  std::string prompt_stage;  // where tokenized prompts go
};

// Of a pipeline whose answers are spoken.
Status add_speech(const ModelOptions& options, const TextShape& shape, TextParts& out) {
  if (shape.vocode == nullptr) return ok_status();
  ASSIGN_OR_RETURN(const auto speech, read_speech_config(options));
  if (!speech) return ok_status();
  out.components.facts.speech = speech_facts(*speech);
  out.options.engine.speech_terminal = shape.vocode->name;
  return ok_status();
}

// What fetches the URLs of pictures and audio, where an option allows some, and decodes videos.
Status add_media_fetcher(const ServeOptions& options, TextParts& out) {
  const MediaFacts& media = out.components.facts.media;
  RETURN_IF_ERROR(check_media_used(options, media, out.components.facts.name));
  if (!media.any()) return ok_status();
  api::MediaFetchOptions fetch{.root = options.media_root, .videos = media.videos, .video_limits = options.video};
  fetch.policy.private_networks = options.media_private_networks;
  for (const std::string& text : options.media_domains) {
    auto domain = http::read_domain(text);
    if (!domain.ok()) return domain.status().with_prefix("--media-allowed-domains");
    fetch.policy.domains.push_back(std::move(domain).value());
  }
  ASSIGN_OR_RETURN(out.options.media_fetcher, api::MediaFetcher::make(std::move(fetch)));
  return ok_status();
}

// nullopt: its answers are no text.
Result<std::optional<TextParts>> text_parts(const ServeOptions& options, const PipelineSpec& spec,
                                            std::shared_ptr<api::RequestSpans> spans) {
  const std::optional<TextShape> shape = text_shape(spec);
  if (!shape) return std::optional<TextParts>();
  ASSIGN_OR_RETURN(const std::optional<ModelOptions> from_args, generate_options(shape->generate->args));
  TextParts out;
  auto loaded = load_text_components(from_args ? *from_args : options.model, !options.served_model_names.empty()
                                                                                 ? options.served_model_names.front()
                                                                             : from_args ? from_args->hub_name
                                                                                         : "");
  if (!loaded.ok())
    return from_args ? loaded.status().with_prefix(fmt::format("stage '{}'", shape->generate->name)) : loaded.status();
  out.components = std::move(loaded).value();
  out.options.engine = {.queue_timeout_ms = int64_t{options.queue_timeout_s} * 1000,
                        .replicas = shape->generate->replicas,
                        .terminal = shape->detokenize->name};
  out.options.engine.wants_prefix =
      shape->generate->replicas > 1 && shape->generate->replica_policy == ReplicaPolicy::kPrefixAware;
  out.prompt_stage = shape->generate->name;
  RETURN_IF_ERROR(add_speech(from_args ? *from_args : options.model, *shape, out));
  RETURN_IF_ERROR(add_media_fetcher(options, out));
  out.options.names = {options.served_model_names, options.any_model_name, options.require_model};
  out.options.public_models = options.public_models;
  out.options.web = options.web;
  out.options.record.lines = options.request_log;
  out.options.record.spans = std::move(spans);
  out.options.response_store_bytes = static_cast<std::size_t>(options.response_store_mib) << 20;
  out.options.response_store_seconds = options.response_store_ttl_s;
  out.options.from_file = from_args.has_value();
  out.options.has_tokenize_stage = shape->tokenize != nullptr;
  if (!from_args) out.options.options_json = options_json(options);
  return std::optional<TextParts>(std::move(out));
}

std::size_t replicas_of(const PipelineSpec& spec) {
  return std::accumulate(
      spec.stages.begin(), spec.stages.end(), std::size_t{0},
      [](std::size_t sum, const StageSpec& stage) { return sum + static_cast<std::size_t>(stage.replicas); });
}

// --decode is --dp.
Status join_names(ServeOptions& options) {
  if (options.decode > 0 && options.prefill == 0) {
    return invalid_argument("--decode is {} without --prefill; wanted both, or --dp", options.decode);
  }
  if (options.decode > 0 && options.dp > 0 && options.dp != options.decode) {
    return invalid_argument("--decode is {} and --dp is {}; wanted one of them", options.decode, options.dp);
  }
  if (options.decode > 0) options.dp = options.decode;
  options.model.kv_transfer_listen = options.kv_transfer_listen;
  options.model.kv_transfer_key_file = options.kv_transfer_key_file;
  return ok_status();
}

// Requests that name the other server are of the command line's model, on this host.
Status check_transfer_use(const ServeOptions& options, const PipelineSpec& spec) {
  if (options.kv_transfer_listen.empty()) return ok_status();
  const bool fits = is_text_pipeline(spec) && !spec.over_hosts() && !generating_stage(spec).args.is<ValueMap>() &&
                    !generating_stage(spec).layers && generating_stage(spec).prefill_from.empty();
  if (fits) return ok_status();
  return invalid_argument(
      "--kv-transfer-listen has no use with this pipeline; wanted a text pipeline on this host whose generating stage "
      "has neither args, layers nor prefill_from");
}

int serve_pipeline(ServeOptions options, PipelineSpec spec, Library library, std::optional<StartWeights> start,
                   const sigset_t& signals) {
  LeadOptions lead = lead_options(options);
  lead.start = std::move(start);
  lead.keeps_joined = !options.discovery.empty();
  if (is_text_pipeline(spec)) {
    if (Status fit = fit_text_pipeline(options, spec, lead); !fit.ok()) return print_error(fit), kExitBadInput;
  }
  if (Status status = check_transfer_use(options, spec); !status.ok()) return print_error(status), kExitBadInput;
  const std::vector<StageReplica> local =
      replicas_of_processes(spec, options.placement == "single")[std::string(kServerProcess)];
  const auto connections = check_process_limits(replicas_of(spec), address_space_mib(spec, local, true));
  if (!connections.ok()) return print_error(connections.status()), kExitBadInput;
  const auto traces = make_traces(options);
  if (!traces.ok()) return print_error(traces.status()), kExitBadInput;
  auto text = text_parts(options, spec, traces->requests);
  if (!text.ok()) return print_error(text.status()), kExitBadInput;
  if (*text) lead.coordinator.prompt_stage = (*text)->prompt_stage;
  lead.spans = traces->exporter;
  const std::string more = std::string(lead.child.model.model.empty() ? "" : " --model DIR") +
                           (options.key_file.empty() ? "" : " --key-file FILE") +
                           (options.etcd_user.file.empty() ? "" : " --discovery-user-file FILE");
  const std::string awaited = join_commands(spec, options.discovery, options.pipeline, more);
  std::string run_dir;
  std::optional<ShutdownWatchdog> end;
  const auto last_act = [&run_dir, &options] {
    RunDir::remove(run_dir);
    remove_folder_of_parent(options);
  };
  if (options.parent > 0) {
    end.emplace(last_act);
  } else {
    end.emplace(signals, last_act);
  }
  const auto leadership = lead_by_name({options.discovery, options.etcd_user}, spec.control, signals);
  if (leadership.status().code() == StatusCode::kCancelled) return 0;
  if (!leadership.ok()) return print_error(leadership.status()), exit_code_of(leadership.status());
  auto made = Instance::lead(std::move(spec), std::move(library), std::move(lead));
  if (!made.ok()) return print_error(made.status()), start_error(made.status());
  Instance& instance = **made;
  run_dir = instance.run_dir();
  http::Server server(server_options(options, *connections));
  std::optional<TextService> service;
  api::PipelineContext context{server, instance.engine(), kVersion, traces->requests};
  const bool from_file = !*text || (*text)->options.from_file;
  if (*text) {
    service.emplace(std::move((*text)->components), std::move((*text)->options), instance.engine(), server);
  } else {
    api::add_pipeline_routes(context);
  }
  if (Status status = start_server(server, service, options.response_store_file); !status.ok()) {
    end->begin(kServerGraceMs, exit_code_of(status));  // stages of this process load already
    return print_error(status), exit_code_of(status);
  }
  warn_of_open_server(options, server);
  if (service) service->start();
  instance.start();
  print_awaited(awaited);
  const auto announce = [&] {
    const std::string url = local_url(options, server);
    if (from_file) {
      const bool chat = service && options.web && service->model().has_chat_template;
      return print_pipeline_banner(url, instance.engine().name(), chat);
    }
    print_banner(url, options, service->model());
  };
  const int exit_code = serve_until_signal(instance, server, options, {signals, *end, leadership->get()}, announce);
  if (service) service->stop();
  remove_folder_of_parent(options);
  return exit_code;
}

// A model of a hub becomes its folder or file in the cache, and has its name.
Status find_model(ServeOptions& options, const sigset_t& signals) {
  ASSIGN_OR_RETURN(const ModelSource source, pulled_source(options.model.model, options.revision, signals));
  options.model.model = source.path;
  if (!source.name.empty() && options.served_model_names.empty()) options.served_model_names = {source.name};
  for (const char* token : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}) ::unsetenv(token);  // of no use to children
  return ok_status();
}

// Of a text pipeline whose generating stage has the command line's model. All its replicas get what is found.
Result<std::optional<StartWeights>> choose_start_weights(ModelOptions& model) {
  if (model.model.empty()) return std::optional<StartWeights>();
  ASSIGN_OR_RETURN(std::optional<StartWeights> start, find_start_weights(model));
  if (start) {
    model.start_weights = start->path;
  } else if (!model.weights_snapshot_dir.empty()) {
    model.start_weights = kStartModel;
  }
  return start;
}

// Options take no empty variables; that of a key would start a server that is open to more than it was meant to be.
void note_empty_keys(ServeOptions& options) {
  const auto is_empty = [](const char* name) {
    const char* const value = std::getenv(name);
    return value != nullptr && *value == '\0';
  };
  if (is_empty("MILLRACE_API_KEY") && options.api_key.empty()) options.given.emplace_back("api-key");
  const bool has_admin_key = !options.admin_api_key.empty() || !options.admin_api_key_file.empty();
  if (is_empty("MILLRACE_ADMIN_API_KEY") && !has_admin_key) options.given.emplace_back("admin-api-key");
}

}  // namespace

int run_serve(const ServeOptions& given, AddWorkers add_workers) {
  ServeOptions options = given;
  note_empty_keys(options);
  // The options have them; child processes need them not.
  for (const char* name : {"MILLRACE_DISCOVERY_USER", "MILLRACE_API_KEY", "MILLRACE_ADMIN_API_KEY"}) ::unsetenv(name);
  if (options.parent > 0) {
    if (Status status = become_child(options.parent); !status.ok()) return print_error(status), 1;
  }
  const sigset_t signals = options.parent > 0 ? block_child_stop_signal() : block_stop_signals();
  log_init("front", log_level_of(options.model.log_level));
  trace::name_process("front");
  if (Status status = load_keys(options); !status.ok()) return print_error(status), kExitBadInput;
  if (Status status = join_names(options); !status.ok()) return print_error(status), kExitBadInput;
  if (wants_router(options)) return run_router(options, signals);
  // A file may have no use for --model; then nothing is pulled.
  const bool from_file = !options.pipeline.empty();
  Status found = from_file ? ok_status() : find_model(options, signals);
  if (!found.ok()) return print_error(found), exit_code_of(found);
  Result<std::optional<StartWeights>> start = std::optional<StartWeights>();
  if (!from_file) start = choose_start_weights(options.model);
  if (!start.ok()) return print_error(start.status()), kExitBadInput;
  Library library = make_library(options.model, add_workers);
  const auto speech = read_speech_config(options.model);
  if (!speech.ok()) return print_error(speech.status()), kExitBadInput;
  auto spec = load_text_or_file(options.pipeline, speech->has_value(), library);
  if (!spec.ok()) return print_error(spec.status()), kExitBadInput;
  if (options.placement == "single") {
    if (Status status = spec->may_be_single(options.pipeline); !status.ok()) return print_error(status), kExitBadInput;
  }
  if (Status status = check_used(options, *spec); !status.ok()) return print_error(status), kExitBadInput;
  if (from_file) {
    found = find_model(options, signals);
    if (!found.ok()) return print_error(found), exit_code_of(found);
    const bool of_command_line = is_text_pipeline(*spec) && !generating_stage(*spec).args.is<ValueMap>();
    if (of_command_line) start = choose_start_weights(options.model);
    if (!start.ok()) return print_error(start.status()), kExitBadInput;
    library = make_library(options.model, add_workers);
  }
  override_hosts(*spec, options.listen, options.key_file);
  return serve_pipeline(options, std::move(*spec), std::move(library), std::move(*start), signals);
}

}  // namespace millrace
