// Stages of a pipeline in a process of their own: a child of `serve`, or one that a person started on another host with
// `millrace stage --join`.

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>

#include "app/commands.h"
#include "app/discovery.h"
#include "app/instance.h"
#include "app/library.h"
#include "app/model_source.h"
#include "app/output.h"
#include "app/process_limits.h"
#include "app/request_traces.h"
#include "app/shutdown_watchdog.h"
#include "app/signals.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/trace.h"
#include "pipeline/model_identity.h"
#include "pipeline/prefill_spec.h"
#include "pipeline/run_dir.h"
#include "pipeline/supervisor.h"
#include "pipeline/text_pipeline.h"
#include "stages/speech/speech_config.h"
#include "stages/stage.h"

namespace millrace {
namespace {

// What a stage of another host that is to end still has to do: requests that run, pages that were promised.
constexpr int kLeaveDrainMs = 10'000;

// Until an end is asked for, or comes. OK: one that was asked for.
Status run_until_end(Instance& instance, const StageOptions& options, const sigset_t& signals, ShutdownWatchdog& end,
                     std::unique_ptr<CoordinatorLocator> coordinator) {
  instance.start();
  if (coordinator) {
    coordinator->start([&instance](const std::string& address) { instance.move_coordinator(address); });
  }
  const bool child = options.parent != 0;
  while (!instance.ended() && !stop_signal(signals) && (!child || parent_alive(options.parent))) {
  }
  const bool by_itself = instance.ended();
  if (!child && !by_itself) {
    instance.drain_stages(kLeaveDrainMs);
    const int64_t until_ms = monotonic_ms() + kLeaveDrainMs;
    while (!instance.drained() && monotonic_ms() < until_ms && !stop_signal(signals)) {
    }
  }
  // A signal meanwhile asks for what is under way already, as when the server and its stages are stopped together.
  const Status status = by_itself ? instance.status() : ok_status();
  end.begin(child ? kStopGraceMs : kServerGraceMs,
            {.at_timeout = 1, .at_signal = status.ok() ? 0 : exit_code_of(status)});
  if (!child && !by_itself) instance.leave();  // its coordinator did not ask for it; what has drained has left already
  instance.stop();
  return status;
}

// A stage without a host is the server's own, which starts it again when it dies: a process in its place would never
// leave it.
Status may_join(const PipelineSpec& spec, const std::vector<StageReplica>& replicas, const std::string& file) {
  std::vector<std::string> elsewhere;
  for (const StageSpec& stage : spec.stages) {
    if (!stage.host.empty()) elsewhere.push_back(stage.name);
  }
  for (const StageReplica& replica : replicas) {
    const StageSpec& stage = *spec.find(replica.stage);
    if (!stage.host.empty()) continue;
    return invalid_argument("{}:{}: stage '{}' has no host, so the server runs it; wanted some of: {}", file,
                            stage.line, stage.name, fmt::join(elsewhere, ", "));
  }
  return ok_status();
}

// What the stages of a text pipeline register with: the checksums of the file and of the model.
Result<uint64_t> text_identity(const PipelineSpec& spec, const StageOptions& options) {
  RETURN_IF_ERROR(check_text_pipeline(spec, options.pipeline, 0));
  if (options.model.model.empty()) {
    return invalid_argument("--model is missing; wanted this host's copy of the model that the coordinator serves");
  }
  ServeOptions serve{.model = options.model};
  serve.dp = 1;
  RETURN_IF_ERROR(validate(serve));
  const bool computes = std::any_of(options.stages.begin(), options.stages.end(), [&](const std::string& one) {
    const StageSpec* stage = spec.find(one.substr(0, one.find(':')));
    return stage != nullptr && stage->worker != kDetokenizeWorker;
  });
  ASSIGN_OR_RETURN(const ModelIdentity identity, identify(spec, options.model, computes));
  return identity.packed();
}

Status run_stages(const StageOptions& options, AddWorkers add_workers, const sigset_t& signals, ShutdownWatchdog& end) {
  Library library = make_library(options.model, add_workers);
  ASSIGN_OR_RETURN(const auto speech, read_speech_config(options.model));
  ASSIGN_OR_RETURN(PipelineSpec spec, load_text_or_file(options.pipeline, speech.has_value(), library));
  const bool child = options.parent != 0;
  if (!child && options.join.empty())
    return invalid_argument("--join is missing; wanted ADDRESS:PORT of the coordinator, or etcd://HOST:PORT/NAME");
  if (!child && !spec.over_hosts()) {
    return invalid_argument("{}: no stage has a host; wanted one that names where else stages run", options.pipeline);
  }
  JoinOptions join{.run_dir = options.run_dir, .listen = options.listen, .spec_hash = spec.hash()};
  if (is_text_pipeline(spec)) {
    ASSIGN_OR_RETURN(join.spec_hash, text_identity(spec, options));
    override_replicas(spec, child ? options.replicas : 0, "");
    if (child && options.prefill > 0) RETURN_IF_ERROR(set_prefill_replicas(spec, options.pipeline, options.prefill));
  }
  ASSIGN_OR_RETURN(join.replicas, parse_replicas(options.stages, spec));
  if (!child) RETURN_IF_ERROR(may_join(spec, join.replicas, options.pipeline));
  RETURN_IF_ERROR(check_process_limits(join.replicas.size(), address_space_mib(spec, join.replicas, false)).status());
  auto coordinator = find_by_name({options.join, options.etcd_user}, signals);
  if (coordinator.status().code() == StatusCode::kCancelled) return ok_status();
  RETURN_IF_ERROR(coordinator.status());
  override_hosts(spec, *coordinator ? (*coordinator)->address() : options.join, options.key_file);
  join.incarnation = child ? options.incarnation << kIncarnationBits : incarnation_of_now();
  ASSIGN_OR_RETURN(join.spans, make_span_exporter(options.otlp_endpoint));
  const std::string name = spec.name, control_address = spec.control;
  const std::size_t count = join.replicas.size();
  ASSIGN_OR_RETURN(auto instance, Instance::join(std::move(spec), std::move(library), std::move(join)));
  if (!child) {
    std::printf("Millrace %s joins %s with %zu stage%s of '%s'. Ctrl-C leaves.\n", kVersion, control_address.c_str(),
                count, count == 1 ? "" : "s", name.c_str());
    std::fflush(stdout);
  }
  return run_until_end(*instance, options, signals, end, std::move(*coordinator));
}

}  // namespace

int run_stage(const StageOptions& given, AddWorkers add_workers) {
  StageOptions options = given;
  if (options.pipeline.empty() && options.run_dir.empty()) {
    print_error(invalid_argument("--pipeline is missing; wanted --join ADDRESS:PORT --pipeline FILE --stages a,b"));
    return kExitBadInput;
  }
  const std::string name = options.process.empty() ? "stage" : options.process;
  log_init(name, log_level_of(options.model.log_level));
  trace::name_process(name);
  const bool child = options.parent != 0;
  const sigset_t signals = child ? block_child_stop_signal() : block_stop_signals();
  const auto last_act = [&options, child] {
    if (child && !options.run_dir.empty() && !parent_alive(options.parent)) RunDir::remove(options.run_dir);
  };
  if (child && !become_child(options.parent).ok()) {
    last_act();
    return 1;
  }
  const Result<ModelSource> source =
      child ? Result<ModelSource>({options.model.model, ""}) : cached_source(options.model.model, "");
  if (!source.ok()) return print_error(source.status()), kExitBadInput;
  options.model.model = source->path;
  Status status;
  {
    ShutdownWatchdog end = child ? ShutdownWatchdog(last_act) : ShutdownWatchdog(signals, last_act);
    status = run_stages(options, add_workers, signals, end);
  }
  last_act();
  if (status.ok()) return 0;
  print_error(status);
  return !child && status.code() == StatusCode::kConflict ? kExitBadInput : exit_code_of(status);
}

}  // namespace millrace
