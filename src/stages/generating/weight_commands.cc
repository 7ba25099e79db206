#include "stages/generating/weight_commands.h"

#include <fmt/format.h>

#include <utility>

namespace millrace {

WeightCommands::WeightCommands(MakeWeights make, LiveOptions live, WriteSnapshot write, GeneratingEngine& engine)
    : can_stage_(make != nullptr),
      engine_(engine),
      stager_(std::move(make), engine.runner()),
      // Uses stager_, which the header declares before it.
      live_(std::move(live), engine, stager_),
      snapshots_(std::move(write)) {}

// The reply where the version of the command serves here already; kConflict: with other weights. What is staged without
// a checksum is an update's first: that its version serves already means that another update had the number.
Result<wire::WeightsReply> WeightCommands::serving(const wire::AdminRequest& command) const {
  const uint64_t checksum = engine_.weights_checksum(command.weight_version);
  if (command.action == wire::AdminAction::kStageWeights && command.weights_checksum == 0 && checksum != 0) {
    return error(StatusCode::kConflict, "serves version {} already, of another update; try again",
                 command.weight_version);
  }
  if (command.weights_checksum == 0 || command.weights_checksum == checksum) {
    return wire::WeightsReply{.checksum = checksum};
  }
  return error(StatusCode::kConflict, "serves version {} with the checksum {:016x}; wanted {:016x}",
               command.weight_version, checksum, command.weights_checksum);
}

void WeightCommands::begin(const wire::AdminRequest& command, Deltas& out, const Reply& reply) {
  // A stream of tensors into the running engine has its own commands, and states between them.
  if (LiveCommands::takes(command.action)) return live_.begin(command, reply);
  Scheduler& scheduler = engine_.scheduler();
  // To stage or to switch to what serves already is done at once: the coordinator may repeat a command whose reply was
  // lost. A switch that is pending has its version in the newest batches already, and is not done.
  const bool about_version =
      command.action == wire::AdminAction::kStageWeights || command.action == wire::AdminAction::kSwitchWeights;
  if (about_version && command.weight_version == scheduler.facts().weight_version && !scheduler.switch_pending()) {
    const Result<wire::WeightsReply> serves = serving(command);
    if (!serves.ok()) return reply(command.id, serves.status(), {});
    return reply(command.id, fmt::format("serves version {}", command.weight_version), *serves);
  }
  switch (command.action) {
    case wire::AdminAction::kStageWeights:
      if (!can_stage_) {
        return reply(command.id, live_.refusal(), {});
      }
      // Replies come from settle(): another thread reads the files.
      return stager_.begin({.command = command.id,
                            .path = command.argument,
                            .version = command.weight_version,
                            .checksum = command.weights_checksum});
    // Without an error where nothing is staged: the coordinator drops everywhere after a failure on one replica.
    case wire::AdminAction::kDropWeights:
      return reply(command.id, drop(command.weight_version), {});
    case wire::AdminAction::kSwitchWeights:
      if (const Status status = begin_switch(command, out); !status.ok()) reply(command.id, status, {});
      return;
    case wire::AdminAction::kInspectWeights:
      return reply(command.id, inspect(command.argument), {});
    case wire::AdminAction::kWriteWeights:
      if (const Status status = begin_snapshot(command); !status.ok()) reply(command.id, status, {});
      return;
    case wire::AdminAction::kPause:
      scheduler.pause(command.policy, out);
      return reply(command.id, fmt::format("paused; {} requests wait", scheduler.facts().waiting), {});
    case wire::AdminAction::kContinue:
      scheduler.resume();
      return reply(command.id, std::string("continued"), {});
    default:
      return reply(command.id, error(StatusCode::kUnsupported, "no command about weights"), {});
  }
}

// The switch that is pending keeps its weights: the next batches name them, and fail without. Where the coordinator has
// given up the update meanwhile, this replica becomes one with other weights than are wanted, and is updated as such.
std::string WeightCommands::drop(uint64_t version) {
  const uint64_t kept = engine_.scheduler().switch_pending() ? switching_.version : 0;
  stager_.drop(version, kept);
  live_.drop(version);
  if (kept == 0 || (version != 0 && version != kept)) return "nothing is staged";
  return fmt::format("the switch to version {} is under way", kept);
}

Result<std::string> WeightCommands::inspect(const std::string& request) {
  const std::shared_ptr<const Model> model = engine_.runner().serving();
  if (model == nullptr) return error(StatusCode::kUnsupported, "this stage does not show its weights");
  return inspector_.answer(*model, request);
}

Status WeightCommands::begin_snapshot(const wire::AdminRequest& command) {
  if (!snapshots_.can_write()) {
    return error(StatusCode::kUnsupported, "--weights-snapshot-dir is not set: weights are kept nowhere");
  }
  // The writer keeps the model alive by this, so a switch may come while its thread still reads the tensors.
  std::shared_ptr<const Model> model = engine_.runner().serving();
  if (model == nullptr) return error(StatusCode::kUnsupported, "this stage does not show its weights");
  if (model->weight_version() != command.weight_version) {
    return error(StatusCode::kConflict, "serves version {}; wanted {}, to write it", model->weight_version(),
                 command.weight_version);
  }
  snapshots_.begin(command.id, std::move(model), command.argument);
  return ok_status();
}

Status WeightCommands::begin_switch(const wire::AdminRequest& command, Deltas& out) {
  const WeightSwitch wanted{
      .version = command.weight_version, .policy = command.policy, .flush_cache = command.flush_cache};
  // kConflict while another switch is pending, so the command number below is never overwritten: settle() has replied
  // to the one before, in the same turn in which its switch ended.
  RETURN_IF_ERROR(engine_.scheduler().switch_weights(wanted, out));
  CHECK(switching_.command == 0);
  switching_ = {.command = command.id, .version = wanted.version};
  const SchedulerFacts facts = engine_.scheduler().facts();
  paused_requests_ = facts.paused ? static_cast<uint32_t>(facts.running + facts.waiting) : 0;
  return ok_status();
}

void WeightCommands::settle(const Reply& reply) {
  const bool pending = engine_.scheduler().switch_pending();
  // What has been made takes the place of what is staged, which a pending switch still needs.
  const std::vector<WeightStager::Made> all = pending ? std::vector<WeightStager::Made>() : stager_.take_made();
  // The checksum is noted before the reply: the next command of the coordinator may be the switch, which compares it.
  for (const WeightStager::Made& made : all) {
    if (made.status.ok()) engine_.note_weights(made.version, made.checksum);
    if (made.command == kLiveCommand) {
      live_.on_made(made);
    } else if (made.status.ok()) {
      reply(made.command, std::string("staged"), {.checksum = made.checksum});
    } else {
      reply(made.command, made.status, {});
    }
  }
  live_.settle(reply);
  for (const SnapshotWriter::Written& written : snapshots_.take_written()) reply(written.command, written.path, {});
  if (switching_.command != 0 && !pending) settle_switch(reply);
}

void WeightCommands::settle_switch(const Reply& reply) {
  const Switching ended = std::exchange(switching_, {});
  const uint64_t version = engine_.scheduler().facts().weight_version;
  if (version != ended.version) {
    return reply(ended.command, error(StatusCode::kConflict, "serves version {}; wanted {}", version, ended.version),
                 {});
  }
  reply(ended.command, fmt::format("serves version {}", version),
        {.checksum = engine_.weights_checksum(version), .paused_requests = paused_requests_});
}

}  // namespace millrace
