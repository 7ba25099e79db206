#include "stages/generating/weight_commands.h"

#include <fmt/format.h>

#include <utility>

namespace millrace {

WeightCommands::WeightCommands(MakeWeights make, GeneratingEngine& engine)
    : can_stage_(make != nullptr), engine_(engine), stager_(std::move(make), engine.runner()) {}

void WeightCommands::begin(const wire::AdminRequest& command, Deltas& out, const Reply& reply) {
  Scheduler& scheduler = engine_.scheduler();
  const bool about_version =
      command.action == wire::AdminAction::kStageWeights || command.action == wire::AdminAction::kSwitchWeights;
  if (about_version && command.weight_version == scheduler.facts().weight_version && !scheduler.switch_pending()) {
    return reply(command.id, fmt::format("serves version {}", command.weight_version));
  }
  switch (command.action) {
    case wire::AdminAction::kStageWeights: {
      const Status status = can_stage_ ? stager_.begin(command.id, command.argument, command.weight_version)
                                       : error(StatusCode::kUnsupported, "this stage takes no new weights");
      if (!status.ok()) reply(command.id, status);
      return;
    }
    case wire::AdminAction::kDropWeights:
      stager_.drop();
      return reply(command.id, std::string("nothing is staged"));
    case wire::AdminAction::kSwitchWeights:
      if (const Status status = begin_switch(command, out); !status.ok()) reply(command.id, status);
      return;
    case wire::AdminAction::kPause:
      scheduler.pause(command.policy, out);
      return reply(command.id, fmt::format("paused; {} requests wait", scheduler.facts().waiting));
    case wire::AdminAction::kContinue:
      scheduler.resume();
      return reply(command.id, std::string("continued"));
    default:
      return reply(command.id, error(StatusCode::kUnsupported, "no command about weights"));
  }
}

Status WeightCommands::begin_switch(const wire::AdminRequest& command, Deltas& out) {
  const WeightSwitch wanted{
      .version = command.weight_version, .policy = command.policy, .flush_cache = command.flush_cache};
  RETURN_IF_ERROR(engine_.scheduler().switch_weights(wanted, out));
  switching_ = command.id;
  return ok_status();
}

void WeightCommands::settle(const Reply& reply) {
  if (auto made = stager_.take_made()) {
    if (made->status.ok()) {
      reply(made->command, std::string("staged"));
    } else {
      reply(made->command, made->status);
    }
  }
  if (switching_ == 0 || engine_.scheduler().switch_pending()) return;
  reply(std::exchange(switching_, 0), fmt::format("serves version {}", engine_.scheduler().facts().weight_version));
}

}  // namespace millrace
