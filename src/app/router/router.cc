#include "app/router/router.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "api/error.h"
#include "app/commands.h"
#include "app/output.h"
#include "app/process_limits.h"
#include "app/router/child_arguments.h"
#include "app/router/model_list.h"
#include "app/router/model_pool.h"
#include "app/router/model_routes.h"
#include "app/router/pull_routes.h"
#include "app/server_options.h"
#include "app/server_process.h"
#include "app/shutdown_watchdog.h"
#include "app/signals.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/memory_info.h"
#include "pipeline/supervisor.h"
#include "stages/stage.h"

namespace millrace {
namespace {

constexpr std::chrono::milliseconds kLastWordsMs{2000};  // to write what is already answered
constexpr int kProgressMs = 250;                         // between two looks at a load
constexpr int kProgressTimeoutMs = 2000;

// A `millrace serve` of one model.
class ServedProcess : public ModelProcess {
 public:
  explicit ServedProcess(std::unique_ptr<ServerProcess> server) : server_(std::move(server)) {}
  State poll() override {
    switch (server_->poll()) {
      case ServerProcess::State::kLoading:
        return State::kLoading;
      case ServerProcess::State::kReady:
        return State::kReady;
      case ServerProcess::State::kEnded:
        return State::kEnded;
    }
    return State::kEnded;
  }
  void terminate() override { server_->terminate(); }
  void interrupt() override { server_->interrupt(); }
  std::string socket() const override { return server_->socket(); }
  std::string error() const override { return server_->how(); }

 private:
  const std::unique_ptr<ServerProcess> server_;
};

StartModel process_starter(const ServeOptions& options) {
  const int grace_ms = options.drain_timeout_s * 1000 + kPrivateServerGraceMs;
  return [arguments = options.child_arguments, grace_ms,
          any_name = options.allow_pull](const ServedModel& model) -> Result<std::unique_ptr<ModelProcess>> {
    ServerProcessOptions process{
        .arguments = arguments_of_model(arguments, model.arguments), .name = model.name, .grace_ms = grace_ms};
    const auto add = [&process](const char* option, const std::string& value) {
      process.arguments.emplace_back(option);
      process.arguments.push_back(value);
    };
    process.arguments.emplace_back("--no-web");
    if (any_name) process.arguments.emplace_back("--any-model-name");  // a model may get more while it is loaded
    add("--model", model.path);
    add("--served-model-name", model.name);
    for (const std::string& alias : model.aliases) add("--served-model-name", alias);
    ASSIGN_OR_RETURN(auto server, ServerProcess::start(std::move(process)));
    return std::unique_ptr<ModelProcess>(std::make_unique<ServedProcess>(std::move(server)));
  };
}

ModelPoolOptions pool_options(const ServeOptions& options) {
  ModelPoolOptions out{.ttl_ms = int64_t{options.model_ttl_s} * 1000, .most_loaded = options.models_max};
  out.memory_bytes = static_cast<uint64_t>(options.models_memory_gib * (1ULL << 30));
  out.wait_ms = int64_t{options.request_timeout_s} * 1000;
  out.available_bytes = [] { return memory_info().available_bytes; };
  out.describe = [length = options.model.context_length](ServedModel& model) { describe_model(model, length); };
  return out;
}

// The progress of a model's load: of several stages, the first that still loads.
void take_progress(ModelPool& pool, const std::string& name, const Result<http::ClientResponse>& answer) {
  if (!answer.ok()) return;
  const auto body = parse_json(answer->body);
  const Json* stages = body.ok() ? json_find(*body, "stages") : nullptr;
  if (stages == nullptr || !stages->is_array()) return;
  for (const Json& stage : *stages) {
    std::string state, message;
    double progress = 0;
    const bool read = json_read(stage, "state", state).ok() && json_read(stage, "message", message).ok() &&
                      json_read(stage, "progress", progress).ok();
    if (!read || state != "loading" || message.empty()) continue;
    return pool.set_progress(name, progress, message);
  }
}

class Router {
 public:
  Router(const ServeOptions& options, std::vector<ServedModel> models, std::size_t connections)
      : options_(options),
        pool_(std::move(models), pool_options(options), process_starter(options)),
        forwarder_([](const std::string& why) {
          return api::error_response(
              {.http_status = 503, .message = fmt::format("the model's server does not answer: {}", why)});
        }),
        server_(server_options(options, connections)),
        routes_({.version = kVersion,
                 .public_models = options.public_models,
                 .require_model = options.require_model,
                 .web = options.web},
                pool_, forwarder_, server_),
        pulls_({.allowed = options.allow_pull, .context_length = options.model.context_length}, pool_, server_) {}

  Status start() {
    routes_.add();
    pulls_.add();
    RETURN_IF_ERROR(forwarder_.start());
    RETURN_IF_ERROR(server_.start());
    warn_of_open_server(options_, server_);
    return ok_status();
  }
  std::string url() const { return local_url(options_, server_); }
  std::size_t models() const { return pool_.models()->size(); }

  void run(const sigset_t& signals) {
    int64_t looked_ms = 0;
    while (!stop_signal(signals)) {
      pool_.tick(monotonic_ms());
      if (monotonic_ms() - looked_ms < kProgressMs) continue;
      looked_ms = monotonic_ms();
      look_at_loads();
    }
  }

  // What runs may end within the limit, or until a second signal, at which it gets an error; what waits or comes gets a
  // 503. A third signal waits for nothing.
  void stop(const sigset_t& signals) {
    pulls_.stop();
    pool_.shut_down();
    for (int more = 0; pool_.has_processes();) {
      pool_.tick(monotonic_ms());
      if (!stop_signal(signals)) continue;
      if (++more == 2) break;
      pool_.interrupt();
    }
    server_.drain(kLastWordsMs);
    server_.stop();
    forwarder_.stop();
  }

 private:
  void look_at_loads() {
    for (const ModelStatus& status : pool_.statuses()) {
      if (status.state != ModelState::kLoading) continue;
      forwarder_.fetch({status.socket, "/ready"}, kProgressTimeoutMs,
                       [this, name = status.name](const Result<http::ClientResponse>& answer) {
                         take_progress(pool_, name, answer);
                       });
    }
  }

  const ServeOptions& options_;
  ModelPool pool_;
  http::Forwarder forwarder_;
  http::Server server_;
  ModelRoutes routes_;
  PullRoutes pulls_;
};

void print_banner(const Router& router, const ServeOptions& options) {
  const std::string url = router.url();
  std::printf("\nMillrace %s serves %zu model%s at %s\n\n", kVersion, router.models(), router.models() == 1 ? "" : "s",
              url.c_str());
  if (options.web && options.tcp) std::printf("  Chat in a browser: %s/\n\n", url.c_str());
  std::printf("  curl %s/v1/models%s\n\n", url.c_str(),
              options.api_key.empty() ? "" : " -H 'Authorization: Bearer KEY'");
  std::printf("Ctrl-C stops the server when the running requests are done.\n");
  std::fflush(stdout);
}

ModelListOptions list_options(const ServeOptions& options) {
  ModelListOptions out{.models = options.models,
                       .folder = options.models_dir,
                       .aliases = options.model_aliases,
                       .pinned = options.pinned_models,
                       .file = options.models_file,
                       .cached = options.allow_pull,
                       .context_length = options.model.context_length};
  if (!options.model.model.empty()) out.models.insert(out.models.begin(), options.model.model);
  return out;
}

}  // namespace

bool wants_router(const ServeOptions& options) {
  const bool named = options.models.size() == 1 && is_named_model(options.models.front());
  return named || options.models.size() > 1 || options.allow_pull || !options.models_file.empty() ||
         !options.models_dir.empty() || options.model_ttl_s > 0 || !options.model_aliases.empty() ||
         !options.pinned_models.empty();
}

int run_router(const ServeOptions& options, const sigset_t& signals) {
  if (Status status = check_router_options(options.given); !status.ok()) return print_error(status), kExitBadInput;
  auto models = list_models_to_serve(list_options(options));
  if (!models.ok()) return print_error(models.status()), kExitBadInput;
  const auto connections = check_process_limits(models->size(), kLeastAddressSpaceMib);
  if (!connections.ok()) return print_error(connections.status()), kExitBadInput;
  ShutdownWatchdog end(signals, [] {});
  Router router(options, std::move(models).value(), *connections);
  if (Status status = router.start(); !status.ok()) return print_error(status), exit_code_of(status);
  print_banner(router, options);
  router.run(signals);
  std::fprintf(
      stderr, "millrace: stopping when the running requests are done, after %d s at most; Ctrl-C again stops at once\n",
      options.drain_timeout_s);
  end.begin(options.drain_timeout_s * 1000 + 2 * kServerGraceMs);
  router.stop(signals);
  return 0;
}

}  // namespace millrace
