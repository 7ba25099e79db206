// millrace serve: the HTTP server in front of a backend, from the first check of the model to the last drained request.
#include <sys/resource.h>

#include <cstdio>
#include <filesystem>

#include "api/error.h"
#include "api/pipelines.h"
#include "api/routes.h"
#include "app/admin_key.h"
#include "app/backend.h"
#include "app/commands.h"
#include "app/end_watch.h"
#include "app/library.h"
#include "app/pipeline_backend.h"
#include "app/progress.h"
#include "app/signals.h"
#include "app/unused_options.h"
#include "base/log.h"
#include "base/trace.h"
#include "http/server.h"
#include "pipeline/supervisor.h"

namespace millrace {
namespace {

constexpr std::chrono::milliseconds kLastWordsMs{2000};  // to write what is already answered

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

// Lets what runs go on, up to the limit or a second signal, while everything new gets a 503.
void drain(const ServeOptions& options, Front& front, http::Server& server, const sigset_t& signals, EndWatch& end) {
  front.drain();
  print_stopping(front.live_requests(), options);
  const int64_t end_ms = monotonic_ms() + int64_t{options.drain_timeout_s} * 1000;
  while (front.live_requests() > 0 && monotonic_ms() < end_ms && !stop_signal(signals)) {
  }
  end.begin(kServerGraceMs);
  front.wait_idle(0);
  server.drain(kLastWordsMs);
  server.stop();
}

// From ready (or not yet) until a signal. Returns the exit code.
int wait_for_the_end(Backend& backend, const ServeOptions& options, const std::string& url, const sigset_t& signals) {
  LoadingProgress progress(stderr);
  bool announced = false;
  while (!stop_signal(signals)) {
    if (backend.failed()) return kExitBadInput;
    if (announced) continue;
    const Health health = backend.front().health();
    for (const wire::StageStatus& stage : health.stages) {
      if (stage.stage.starts_with("scheduler") && stage.incarnation != 0) {  // 0: never there
        progress.update(stage);                                              // of several, the first that still loads
        if (stage.state == wire::StageState::kLoading) break;
      }
    }
    if (!health.ready) continue;
    progress.finish();
    print_banner(url, options, backend.front().model());
    announced = true;
  }
  return 0;
}

// A connection is a file descriptor: as many as the system lets this process have.
void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

// The pipeline to run: the file, or text serving as it is built in.
Result<PipelineSpec> pipeline_of(const ServeOptions& options) {
  const Library library = make_library();
  if (!options.pipeline.empty()) return load_pipeline(options.pipeline, library);
  return parse_pipeline(builtin_text_pipeline(), "pipelines/text.yaml", library);
}

// Of what a person said: another start will not help.
int start_error(const Status& status) { return status.code() == StatusCode::kInternal ? 1 : kExitBadInput; }

void print_awaited(const std::string& awaited) {
  if (!awaited.empty()) std::fprintf(stderr, "millrace: waiting for stages of other hosts:\n%s", awaited.c_str());
}

int serve_text(ServeOptions options, const PipelineSpec& spec, const sigset_t& signals) {
  const std::string file = options.pipeline.empty() ? "pipelines/text.yaml" : options.pipeline;
  if (options.model.model.empty()) {
    return print_error(invalid_argument("--model is missing; wanted a Hugging Face model directory")), kExitBadInput;
  }
  auto plan = plan_text(spec, file, options.dp, options.placement == "single");
  if (!plan.ok()) return print_error(plan.status()), kExitBadInput;
  options.dp = plan->schedulers();
  if (options.placement.empty()) options.placement = plan->children().empty() ? "single" : "processes";
  if (Status status = validate(options); !status.ok()) return print_error(status), kExitBadInput;
  auto side = load_text_side(options);
  if (!side.ok()) return print_error(side.status()), kExitBadInput;
  std::string run_dir;
  EndWatch end(signals, [&run_dir] { RunDir::remove(run_dir); });
  auto backend = Backend::make(options, *side, spec, std::move(plan).value());
  if (!backend.ok()) return print_error(backend.status()), start_error(backend.status());

  run_dir = (*backend)->run_dir();
  http::Server server(server_options(options));
  api::ApiContext context{server, (*backend)->front(), kVersion, options_json(options)};
  api::add_routes(context);
  if (Status status = server.start(); !status.ok()) return print_error(status), kExitBadInput;
  (*backend)->start();
  print_awaited((*backend)->awaited_hosts());
  const int exit_code = wait_for_the_end(**backend, options, server.url(), signals);
  if (exit_code == 0) drain(options, (*backend)->front(), server, signals, end);
  end.begin(kServerGraceMs, exit_code);
  server.stop();
  (*backend)->stop();
  return exit_code;
}

// At a signal, what is running may end within the limit, or until a second one.
int serve_pipeline(const ServeOptions& options, PipelineSpec spec, const sigset_t& signals) {
  std::string run_dir;
  EndWatch end(signals, [&run_dir] { RunDir::remove(run_dir); });
  auto backend = PipelineBackend::make(std::move(spec), options.pipeline, options.placement == "single",
                                       options.model.log_level, options.profile_dir);
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
  int exit_code = 0;
  for (bool announced = false; !stop_signal(signals) && exit_code == 0;) {
    if ((*backend)->failed()) exit_code = kExitBadInput;
    if (announced || !(*backend)->health().ready) continue;
    std::printf("\nMillrace %s runs the pipeline '%s' at %s\n\n", kVersion, (*backend)->name().c_str(),
                server.url().c_str());
    std::printf(
        "  curl %s/v1/pipeline -H 'Content-Type: application/json' -d '{\"inputs\": {...}, \"stream\": true}'\n\n",
        server.url().c_str());
    std::printf("Ctrl-C stops the server when the running requests are done.\n");
    std::fflush(stdout);
    announced = true;
  }
  (*backend)->drain();
  if (exit_code == 0) print_stopping((*backend)->live_requests(), options);
  const int64_t end_ms = monotonic_ms() + int64_t{options.drain_timeout_s} * 1000;
  while (exit_code == 0 && (*backend)->live_requests() > 0 && monotonic_ms() < end_ms && !stop_signal(signals)) {
  }
  end.begin(kServerGraceMs, exit_code == 0 ? 1 : exit_code);
  (*backend)->stop();
  server.drain(kLastWordsMs);
  server.stop();
  return exit_code;
}

}  // namespace

int run_serve(const ServeOptions& given) {
  raise_descriptor_limit();
  ServeOptions options = given;
  const sigset_t signals = block_stop_signals();
  log_init("front", log_level_of(options.model.log_level));
  trace::name_process("front");
  if (Status status = load_admin_key(options); !status.ok()) return print_error(status), kExitBadInput;
  auto spec = pipeline_of(options);
  if (!spec.ok()) return print_error(spec.status()), kExitBadInput;
  if (options.placement == "single") {
    if (Status status = spec->may_be_single(options.pipeline); !status.ok()) return print_error(status), kExitBadInput;
  }
  if (Status status = check_used(options, *spec); !status.ok()) return print_error(status), kExitBadInput;
  override_hosts(*spec, options.listen, options.key_file);
  if (is_text_pipeline(*spec)) return serve_text(options, *spec, signals);
  return serve_pipeline(options, *spec, signals);
}

}  // namespace millrace
