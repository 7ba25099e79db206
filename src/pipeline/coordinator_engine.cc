#include "pipeline/coordinator_engine.h"

#include <fmt/format.h>

#include <algorithm>

#include "stages/log_lines.h"

namespace millrace {

namespace {

std::vector<std::string> stages_with_weights(const PipelineSpec& spec, const Library& library) {
  std::vector<std::string> stages;
  for (const StageSpec& stage : spec.stages) {
    if (library.with_weights.contains(stage.worker)) stages.push_back(stage.name);
  }
  return stages;
}

// A stage that computes prompts has the model of the one that it computes them for.
bool have_one_model(const PipelineSpec& spec, const Library& library) {
  return std::count_if(spec.stages.begin(), spec.stages.end(), [&](const StageSpec& stage) {
           return library.with_weights.contains(stage.worker) && !stage.computes_prompts();
         }) == 1;
}

// Of the first stage with weights.
std::size_t first_replicas(const PipelineSpec& spec, const Library& library) {
  const std::vector<std::string> stages = stages_with_weights(spec, library);
  return stages.empty() ? 0 : static_cast<std::size_t>(spec.find(stages.front())->replicas);
}

WeightUpdates::Env env_of_weights(CoordinatorThread& coordinator, const std::vector<std::string>& stages) {
  return {
      .command = [&coordinator](PipelineCommand command,
                                AdminCommands::Done done) { coordinator.admin(std::move(command), std::move(done)); },
      .require = [&coordinator, stages](RequiredWeights weights) { coordinator.require_weights(stages, weights); },
      .accept = [&coordinator, stages](RequiredWeights next) { coordinator.accept_weights(stages, next); },
      .note = [&coordinator](const StageReplica& replica,
                             std::string text) { coordinator.note_weights(replica, std::move(text)); },
      .hold = [&coordinator](bool held) { coordinator.hold(held); },
      .in_flight = [&coordinator] { return coordinator.running(); }};
}

}  // namespace

CoordinatorEngine::CoordinatorEngine(const PipelineSpec& spec, const Library& library, CoordinatorThread& coordinator,
                                     const loop::Relays& relays, std::string profile_folder)
    : spec_(spec),
      picture_(to_svg(spec)),
      coordinator_(coordinator),
      relays_(relays),
      weights_(std::make_unique<WeightUpdates>(stages_with_weights(spec, library),
                                               env_of_weights(coordinator, stages_with_weights(spec, library)),
                                               have_one_model(spec, library), first_replicas(spec, library))),
      profile_(std::move(profile_folder)) {}

void CoordinatorEngine::tick(int64_t now_ms) {
  // Health copies the status of every stage: only while something is received.
  if (weights_->state().phase == WeightsState::Phase::kReceiving) weights_->on_status(coordinator_.health().stages);
  // Before tick(), see weight_updates.h.
  weights_->on_known(coordinator_.known_weights());
  weights_->tick(now_ms, coordinator_.stale_replicas());
}

void CoordinatorEngine::stop() {
  std::lock_guard lock(writer_mutex_);
  if (profile_writer_.joinable()) profile_writer_.join();
}

ReqId CoordinatorEngine::submit(PipelineRequest request, Sink sink) {
  return coordinator_.submit(request.inputs, std::move(request.options), std::move(sink));
}

Health CoordinatorEngine::health() const {
  Health health = coordinator_.health();
  if (weights_->has_stages()) health.weights = weights_->state();
  return health;
}

// ---- admin commands

namespace {

wire::AdminReply of_server(const Result<std::string>& answer) {
  return {.stage = std::string(kServerProcess),
          .code = answer.ok() ? StatusCode::kOk : answer.status().code(),
          .message = answer.ok() ? *answer : answer.status().message()};
}

}  // namespace

void CoordinatorEngine::admin(wire::AdminAction action, int64_t timeout_ms, AdminCommands::Done done) {
  const bool starts = action == wire::AdminAction::kStartProfile, stops = action == wire::AdminAction::kStopProfile;
  // This process first: its folder is the argument, and where it cannot record no stage needs to begin.
  Result<std::string> argument = starts ? profile_.start() : stops ? profile_.begin_stop() : std::string();
  if (action == wire::AdminAction::kShowLog) argument = log_process();
  if (!argument.ok()) return done({of_server(argument)});
  PipelineCommand command{.action = action, .argument = std::move(argument).value(), .timeout_ms = timeout_ms};
  coordinator_.admin(std::move(command), [this, starts, stops, done](std::vector<wire::AdminReply> replies) {
    if (stops) return end_profile(std::move(replies), done);
    if (starts) replies.insert(replies.begin(), of_server(std::string("recording")));
    done(std::move(replies));
  });
}

// Files are written aside: the pipeline goes on meanwhile.
void CoordinatorEngine::end_profile(std::vector<wire::AdminReply> replies, AdminCommands::Done done) {
  std::lock_guard lock(writer_mutex_);
  if (profile_writer_.joinable()) profile_writer_.join();
  // Writing takes seconds, and this runs on the coordinator's thread.
  profile_writer_ = std::thread([this, replies = std::move(replies), done = std::move(done)]() mutable {
    replies.insert(replies.begin(), of_server(profile_.finish()));
    done(std::move(replies));
  });
}

// Where a stage sends both to another one, its stream is shown.
std::vector<StageLink> CoordinatorEngine::links() const {
  std::vector<StageLink> out;
  for (const StageSpec& stage : spec_.stages) {
    for (const std::string& to : stage.stream_to) out.push_back({stage.name, to, StageLink::Kind::kStream});
    for (const std::string& to : stage.next) {
      if (!contains(stage.stream_to, to)) out.push_back({stage.name, to, StageLink::Kind::kPayload});
    }
    if (!stage.prefill_from.empty()) out.push_back({stage.prefill_from, stage.name, StageLink::Kind::kPages});
    if (!stage.encode_from.empty()) out.push_back({stage.encode_from, stage.name, StageLink::Kind::kFeatures});
    if (!stage.layers_to.empty()) out.push_back({stage.name, stage.layers_to, StageLink::Kind::kLayers});
  }
  return out;
}

std::vector<MetricSample> CoordinatorEngine::samples() const {
  const CoordinatorBooks books = coordinator_.books();
  std::vector<MetricSample> out;
  const auto add = [&out](const char* name, const char* help, auto value, MetricLabels labels = {}) {
    out.push_back({name, help, std::move(labels), static_cast<double>(value)});
  };
  const auto ended = [&add](const char* state, uint64_t count) {
    add("pipeline_requests_total", "Requests that have ended, by how.", count, {{"state", state}});
  };
  ended("completed", books.completed), ended("failed", books.failed), ended("aborted", books.aborted);
  ended("refused", books.refused);
  add("live_requests", "Requests under way.", books.live);
  add("pipeline_open_aborts", "Aborts that some stage has not acknowledged.", books.open_aborts);
  add("pipeline_client_chunks", "Chunks of answers that wait for their clients.", books.queued_chunks);
  add("pipeline_client_bytes", "Their bytes.", books.queued_bytes);
  add("pipeline_fetches", "Payloads on their way to the coordinator.", books.fetches);
  add("pipeline_lost_requests_total", "Requests that failed because a message between the stages was lost.",
      books.lost);
  const auto ignored = [&add](const char* why, uint64_t count) {
    add("pipeline_messages_ignored_total", "Messages to the coordinator that changed nothing.", count, {{"why", why}});
  };
  ignored("late", books.late), ignored("repeated", books.repeated), ignored("unexpected", books.ignored);
  ignored("fenced", books.fenced), ignored("unknown", books.unknown);
  for (const auto& [name, relay] : relays_) {
    const RelayBooks of = relay->books();
    add("pipeline_relay_puts", "Payloads that the coordinator offers.", of.puts, {{"relay", name}});
    add("pipeline_relay_held_bytes", "Bytes that the coordinator's relays hold.", of.held_bytes, {{"relay", name}});
  }
  return out;
}

}  // namespace millrace
