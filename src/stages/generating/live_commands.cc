#include "stages/generating/live_commands.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "stages/generating/body_tensors.h"
#include "stages/weight_control.h"

namespace millrace {

LiveCommands::LiveCommands(LiveOptions options, GeneratingEngine& engine, WeightStager& stager)
    : options_(std::move(options)),
      engine_(engine),
      stager_(stager),
      member_(options_.replica, options_.trainer_hosts) {}

void LiveCommands::begin(const wire::AdminRequest& command, const Reply& reply) {
  Status status;
  switch (command.action) {
    case wire::AdminAction::kJoinGroup:
      status = join(command);
      break;
    case wire::AdminAction::kLeaveGroup:
      status = member_.leave(command.argument);
      if (status.ok()) return reply(command.id, std::string("left"), {});
      break;
    case wire::AdminAction::kReceiveWeights:
      status = receive(command);
      break;
    case wire::AdminAction::kAwaitWeights:
      await_ = command.id;
      break;
    case wire::AdminAction::kHoldWeights:
      hold_ = command.id;
      break;
    default:
      status = error(StatusCode::kUnsupported, "no command about a trainer's group");
  }
  if (!status.ok()) reply(command.id, status, {});
}

Status LiveCommands::refusal() const {
  return error(StatusCode::kUnsupported, "this stage takes no new weights{}{}", options_.why_fixed.empty() ? "" : ": ",
               options_.why_fixed);
}

Status LiveCommands::join(const wire::AdminRequest& command) {
  if (!options_.make) return refusal();
  if (receiving_)
    return error(StatusCode::kConflict, "weights are being received over the group '{}'", receiving_->name);
  ASSIGN_OR_RETURN(const Json body, parse_json(command.argument));
  ASSIGN_OR_RETURN(const TrainerGroup group, read_trainer_group(body));
  member_.begin_join(command.id, group, command.timeout_ms);
  return ok_status();
}

Result<std::shared_ptr<const Model>> LiveCommands::base_of(const WeightPlan& plan, uint64_t version) const {
  if (plan.round > 0 && (staged_ == nullptr || version != version_)) {
    return error(StatusCode::kConflict, "the rounds before round {} of weight version {} are not staged here",
                 plan.round + 1, version);
  }
  std::shared_ptr<const Model> base = plan.round > 0 ? staged_ : engine_.runner().serving();
  if (base == nullptr) return refusal();
  return base;
}

Result<std::shared_ptr<JoinedGroup>> LiveCommands::source_of(const WeightPlan& plan) const {
  if (plan.body.path.empty()) return member_.find(plan.group);
  auto source = std::make_shared<JoinedGroup>();
  ASSIGN_OR_RETURN(source->group, open_body_tensors(plan.body));
  return source;
}

// A broadcast may have been cut in the middle, so that its group is of no more use.
void LiveCommands::leave_source() {
  if (!receiving_->name.empty()) member_.leave_any();
}

Status LiveCommands::receive(const wire::AdminRequest& command) {
  ASSIGN_OR_RETURN(const Json body, parse_json(command.argument));
  ASSIGN_OR_RETURN(WeightPlan plan, read_weight_plan(body));
  ASSIGN_OR_RETURN(plan.body, read_weight_body(body));
  ASSIGN_OR_RETURN(std::shared_ptr<JoinedGroup> group, source_of(plan));
  const std::vector<TensorSpec> tensors = plan.tensors();
  ASSIGN_OR_RETURN(std::shared_ptr<const Model> from, base_of(plan, command.weight_version));
  ASSIGN_OR_RETURN(std::shared_ptr<LiveWeights> weights, options_.make(std::move(from), tensors));
  // Replicas must have the same weights after the update: those of this one are carried over where they are the
  // engine's.
  const uint64_t base = plan.base_version, serves = weights->serving_version();
  if (plan.round == 0 && base != 0 && base != serves && !weights->covers_all(tensors)) {
    return error(StatusCode::kConflict, "it serves weight version {} and not {}; wanted an update with all tensors",
                 serves, base);
  }
  const auto progress = std::make_shared<ReceiveProgress>();
  stager_.begin({.command = kLiveCommand,
                 .version = command.weight_version,
                 .make = [group, weights, progress, plan = std::move(plan), version = command.weight_version] {
                   return receive_weights(*group->group, plan, *weights, version, *progress);
                 }});
  receiving_ = std::move(group);
  progress_ = progress;
  version_ = command.weight_version;
  received_.reset();
  staged_ = nullptr;
  superseded_hold_ = std::exchange(hold_, 0);
  ready_ = command.id;
  return ok_status();
}

void LiveCommands::drop(uint64_t version) {
  if (!receiving_ || (version != 0 && version != version_)) return;
  leave_source();
  staged_ = nullptr;
  received_ =
      WeightStager::Made{.version = version_, .status = error(StatusCode::kCancelled, "the update was dropped")};
  receiving_ = nullptr;
}

void LiveCommands::describe(std::vector<wire::Metric>& metrics) const {
  if (!receiving_) return;
  metrics.push_back({kReceivingVersionMetric, static_cast<double>(version_)});
  metrics.push_back({kReceivedBucketsMetric, static_cast<double>(progress_->buckets.load(std::memory_order_relaxed))});
  metrics.push_back({kReceivedBytesMetric, static_cast<double>(progress_->bytes.load(std::memory_order_relaxed))});
}

void LiveCommands::settle(const Reply& reply) {
  const auto send = [&reply](uint64_t& command, const Status& status, const char* text, uint64_t checksum = 0) {
    const uint64_t id = std::exchange(command, 0);
    if (status.ok()) return reply(id, std::string(text), {.checksum = checksum});
    reply(id, status, {});
  };
  for (GroupMember::Joined& joined : member_.take_joined()) send(joined.command, joined.status, "joined");
  if (received_ && receiving_) {
    if (!received_->status.ok()) leave_source();
    staged_ = std::move(received_->model);
    receiving_ = nullptr;
  }
  if (ready_ != 0 && received_) send(ready_, received_->status, "ready");
  if (ready_ != 0 && progress_->started.load(std::memory_order_acquire)) send(ready_, ok_status(), "ready");
  if (await_ != 0 && received_) send(await_, received_->status, "staged", received_->checksum);
  if (await_ != 0 && !receiving_) send(await_, error(StatusCode::kConflict, "no weights are being received"), "");
  if (superseded_hold_ != 0) send(superseded_hold_, ok_status(), "received in addition");
  if (!receiving_ && engine_.runner().staged_version() != version_) staged_ = nullptr;  // it serves, or was dropped
  if (hold_ != 0 && engine_.runner().staged_version() != version_) send(hold_, ok_status(), "not staged any more");
}

}  // namespace millrace
