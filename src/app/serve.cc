// millrace serve: the HTTP server in front of a backend, from the first check of the model to the last drained request.
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <thread>

#include "api/error.h"
#include "api/pipelines.h"
#include "api/routes.h"
#include "app/admin_key.h"
#include "app/commands.h"
#include "app/end_watch.h"
#include "app/library.h"
#include "app/loading.h"
#include "app/output.h"
#include "app/pipeline_backend.h"
#include "app/progress.h"
#include "app/signals.h"
#include "app/text_identity.h"
#include "app/text_pipeline.h"
#include "app/unused_options.h"
#include "base/log.h"
#include "base/trace.h"
#include "http/server.h"
#include "pipeline/supervisor.h"
#include "stages/text_engine.h"

namespace millrace {
namespace {

constexpr std::chrono::milliseconds kLastWordsMs{2000};  // to write what is already answered
constexpr int kBeforeQueue = 1024;  // requests that may be in the tokenizer or on their way to the scheduler's queue

http::ServerOptions server_options(const ServeOptions& o) {
  http::ServerOptions out;
  out.host = o.host;
  out.port = static_cast<uint16_t>(o.port);
  out.api_key = o.api_key;
  out.admin_api_key = o.admin_api_key;
  out.admin_without_key = o.admin_without_key;
  out.unix_socket = o.uds;
  out.cors_origins = o.cors_origins;
  out.allowed_hosts = o.allowed_hosts;
  out.server_name = std::string("millrace/") + kVersion;
  out.limits.body_bytes = static_cast<std::size_t>(o.max_body_mib) << 20;
  out.render_error = api::render_http_error;
  return out;
}

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
    std::printf(
        "  curl %s/v1/chat/completions%s -H 'Content-Type: application/json' \\\n"
        "    -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Tell me a short story about a dog.\"}]}'\n\n",
        url.c_str(), key);
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

// What Ctrl-C has begun, for whoever pressed it.
void print_stopping(std::size_t live, const ServeOptions& options) {
  if (live > 0) {
    std::fprintf(stderr, "millrace: stopping when %zu %s done, after %d s at most; Ctrl-C again stops at once\n", live,
                 live == 1 ? "request is" : "requests are", options.drain_timeout_s);
  } else {
    std::fprintf(stderr, "millrace: stopping\n");
  }
}

// A connection is a file descriptor: as many as the system lets this process have.
void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

// Of what a person said: another start will not help.
int start_error(const Status& status) { return status.code() == StatusCode::kInternal ? 1 : kExitBadInput; }

void print_awaited(const std::string& awaited) {
  if (!awaited.empty()) std::fprintf(stderr, "millrace: waiting for stages of other hosts:\n%s", awaited.c_str());
}

void print_pipeline_banner(const std::string& url, const std::string& name) {
  std::printf("\nMillrace %s runs the pipeline '%s' at %s\n\n", kVersion, name.c_str(), url.c_str());
  std::printf(
      "  curl %s/v1/pipeline -H 'Content-Type: application/json' -d '{\"inputs\": {...}, \"stream\": true}'\n\n",
      url.c_str());
  std::printf("Ctrl-C stops the server when the running requests are done.\n");
  std::fflush(stdout);
}

// What loads, for whoever started the server: of several stages, the first that still does.
void show_loading(LoadingProgress& progress, const Health& health) {
  for (const wire::StageStatus& stage : health.stages) {
    if (stage.state != wire::StageState::kLoading || stage.incarnation == 0) continue;  // 0: never there
    return progress.update(stage);
  }
}

// From the start until a signal has ended it. Returns the exit code.
int serve_until_signal(PipelineBackend& backend, http::Server& server, const ServeOptions& options,
                       const sigset_t& signals, EndWatch& end, const std::function<void()>& announce) {
  LoadingProgress progress(stderr);
  int exit_code = 0;
  for (bool announced = false; !stop_signal(signals) && exit_code == 0;) {
    if (backend.failed()) exit_code = kExitBadInput;
    if (announced || exit_code != 0) continue;
    const Health health = backend.health();
    show_loading(progress, health);
    if (!health.ready) continue;
    progress.finish();
    announce();
    announced = true;
  }
  // What is running may end within the limit, or until a second signal; everything new gets a 503.
  backend.drain();
  if (exit_code == 0) print_stopping(backend.live_requests(), options);
  const int64_t end_ms = monotonic_ms() + int64_t{options.drain_timeout_s} * 1000;
  while (exit_code == 0 && backend.live_requests() > 0 && monotonic_ms() < end_ms && !stop_signal(signals)) {
  }
  end.begin(kServerGraceMs, exit_code);
  backend.stop();
  server.drain(kLastWordsMs);
  server.stop();
  return exit_code;
}

PipelineBackendOptions backend_options(const ServeOptions& options) {
  PipelineBackendOptions out{.file = options.pipeline, .single = options.placement == "single"};
  out.model.log_level = options.model.log_level;
  out.profile_folder = options.profile_dir;
  return out;
}

// A stage of this host that says nothing is slow or hangs; --stall-restart-s says how long it may. One of another host
// has a lease as every stage has.
Result<PipelineBackendOptions> text_backend_options(const ServeOptions& options, const PipelineSpec& spec) {
  constexpr int64_t kForEverMs = int64_t{1} << 40;
  PipelineBackendOptions out = backend_options(options);
  out.model = options.model;
  out.replicas = options.dp;
  const bool over_hosts =
      std::any_of(spec.stages.begin(), spec.stages.end(), [](const auto& stage) { return !stage.host.empty(); });
  CoordinatorOptions& coordinator = out.coordinator;
  coordinator.stall_grace_ms = int64_t{options.stall_restart_s} * 1000;
  if (!over_hosts) {
    coordinator.spec_hash = spec.hash();
    coordinator.lease_ms = options.stall_restart_s > 0 ? coordinator.stall_grace_ms : kForEverMs;
    return out;
  }
  const bool generates = generating_stage(spec).host.empty();
  ASSIGN_OR_RETURN(const TextIdentity identity, identify(spec, options.model, generates));
  coordinator.spec_hash = identity.packed();
  // Where this host has no weights, the first that joins says which they are.
  coordinator.same_spec = [known = identity](uint64_t theirs, uint64_t) mutable {
    const TextIdentity joiner = TextIdentity::unpack(theirs);
    RETURN_IF_ERROR(same_identity(joiner, known));
    if (known.weights == 0) known.weights = joiner.weights;
    return ok_status();
  };
  return out;
}

int serve_text(ServeOptions options, PipelineSpec spec, const sigset_t& signals) {
  const std::string file = options.pipeline.empty() ? kBuiltinFile : options.pipeline;
  if (options.model.model.empty()) {
    return print_error(invalid_argument("--model is missing; wanted a Hugging Face model directory")), kExitBadInput;
  }
  if (Status status = check_text_pipeline(spec, file, options.dp); !status.ok()) {
    return print_error(status), kExitBadInput;
  }
  const bool children = std::any_of(spec.stages.begin(), spec.stages.end(), [](const StageSpec& stage) {
    return stage.host.empty() && stage.process != kFrontProcess;
  });
  const int replicas = options.dp > 0 ? options.dp : generating_stage(spec).replicas;
  if (options.placement.empty()) options.placement = children ? "processes" : "single";
  ServeOptions checked = options;
  checked.dp = replicas;
  if (Status status = validate(checked); !status.ok()) return print_error(status), kExitBadInput;
  auto side = load_text_side(options);
  if (!side.ok()) return print_error(side.status()), kExitBadInput;
  auto backend_options = text_backend_options(options, spec);
  if (!backend_options.ok()) return print_error(backend_options.status()), kExitBadInput;
  override_replicas(spec, options.dp, options.dp_policy);
  spec.request_timeout_s = options.request_timeout_s;
  spec.max_requests = replicas * (options.model.max_running_requests + options.model.max_queued_requests) + kBeforeQueue;

  std::string run_dir;
  EndWatch end(signals, [&run_dir] { RunDir::remove(run_dir); });
  TextEngineOptions engine_options{.queue_timeout_ms = int64_t{options.queue_timeout_s} * 1000, .replicas = replicas};
  engine_options.wants_prefix = replicas > 1 && options.dp_policy == "prefix_aware";
  auto backend = PipelineBackend::make(std::move(spec), std::move(backend_options).value());
  if (!backend.ok()) return print_error(backend.status()), start_error(backend.status());
  run_dir = (*backend)->run_dir();
  TokenizerStage tokenizer(side->tokenizer, side->chat_template, side->max_prompt_bytes);
  TextEngine engine(engine_options, side->facts, tokenizer, **backend);
  http::Server server(server_options(options));
  api::ApiContext context{server, engine, kVersion, options_json(checked)};
  api::add_routes(context);
  if (Status status = server.start(); !status.ok()) {
    end.begin(kServerGraceMs, kExitBadInput);  // stages of this process load already
    return print_error(status), kExitBadInput;
  }
  std::thread tokenizing([&tokenizer] { tokenizer.run(); });
  (*backend)->start();
  print_awaited((*backend)->awaited_hosts());
  const auto announce = [&] { print_banner(server.url(), options, engine.model()); };
  const int exit_code = serve_until_signal(**backend, server, options, signals, end, announce);
  tokenizer.close();
  tokenizer.request_stop();
  tokenizing.join();
  return exit_code;
}

int serve_pipeline(const ServeOptions& options, PipelineSpec spec, const sigset_t& signals) {
  std::string run_dir;
  EndWatch end(signals, [&run_dir] { RunDir::remove(run_dir); });
  auto backend = PipelineBackend::make(std::move(spec), backend_options(options));
  if (!backend.ok()) return print_error(backend.status()), kExitBadInput;
  run_dir = (*backend)->run_dir();
  http::Server server(server_options(options));
  api::PipelineContext context{server, **backend, kVersion};
  api::add_pipeline_routes(context);
  if (Status status = server.start(); !status.ok()) {
    end.begin(kServerGraceMs, kExitBadInput);  // stages of this process load already
    return print_error(status), kExitBadInput;
  }
  (*backend)->start();
  print_awaited((*backend)->awaited_hosts());
  const auto announce = [&] { print_pipeline_banner(server.url(), (*backend)->name()); };
  return serve_until_signal(**backend, server, options, signals, end, announce);
}

}  // namespace

int run_serve(const ServeOptions& given) {
  raise_descriptor_limit();
  ServeOptions options = given;
  const sigset_t signals = block_stop_signals();
  log_init("front", log_level_of(options.model.log_level));
  trace::name_process("front");
  if (Status status = load_admin_key(options); !status.ok()) return print_error(status), kExitBadInput;
  auto spec = load_text_or_file(options.pipeline, make_library());
  if (!spec.ok()) return print_error(spec.status()), kExitBadInput;
  if (options.placement == "single") {
    if (Status status = spec->may_be_single(options.pipeline); !status.ok()) return print_error(status), kExitBadInput;
  }
  if (Status status = check_used(options, *spec); !status.ok()) return print_error(status), kExitBadInput;
  override_hosts(*spec, options.listen, options.key_file);
  if (is_text_pipeline(*spec)) return serve_text(options, std::move(*spec), signals);
  return serve_pipeline(options, std::move(*spec), signals);
}

}  // namespace millrace
