#include "pipeline/weight_updates.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace millrace {
namespace {

bool any_ok(const std::vector<wire::AdminReply>& replies) {
  return std::any_of(replies.begin(), replies.end(), [](const auto& reply) { return reply.code == StatusCode::kOk; });
}

// The first that failed, by its stage. A replica that is not there is no failure where another one is: it gets the new
// weights when it joins.
Status first_failure(const std::vector<wire::AdminReply>& replies) {
  const bool others = any_ok(replies);
  for (const wire::AdminReply& reply : replies) {
    if (reply.code == StatusCode::kOk || (reply.code == StatusCode::kUnavailable && others)) continue;
    return Status(reply.code, fmt::format("{}: {}", reply.stage, reply.message));
  }
  if (replies.empty()) return error(StatusCode::kUnavailable, "no stage replied");
  return ok_status();
}

void report(const std::vector<wire::AdminReply>& replies) {
  if (const Status status = first_failure(replies); !status.ok()) LOG_ERROR("weights: {}", status.to_string());
}

Status check_label(const std::string& label) {
  if (label.size() <= kMaxVersionLabelBytes) return ok_status();
  return invalid_argument("weight_version has {} bytes; wanted at most {}", label.size(), kMaxVersionLabelBytes);
}

}  // namespace

WeightUpdates::WeightUpdates(std::vector<std::string> stages, Command command, Serve serve)
    : stages_(std::move(stages)), command_(std::move(command)), serve_(std::move(serve)) {}

PipelineCommand WeightUpdates::command_of(wire::AdminAction action, int64_t timeout_ms) const {
  PipelineCommand command{.action = action, .stages = stages_, .timeout_ms = timeout_ms};
  command.weight_version = update_.version;
  command.policy = update_.wanted.policy;
  command.flush_cache = update_.wanted.flush_cache;
  return command;
}

Status WeightUpdates::begin(DiskUpdate update, Done done) {
  if (stages_.empty()) return error(StatusCode::kUnsupported, "the pipeline has no stage with weights");
  RETURN_IF_ERROR(check_label(update.label));
  const std::lock_guard lock(mutex_);
  if (state_.phase != WeightsState::Phase::kIdle) {
    return error(StatusCode::kConflict, "a weight update is already in progress (version {})", update_.version);
  }
  state_.phase = WeightsState::Phase::kStaging;
  update_ = {.version = next_version_++,
             .wanted = std::move(update),
             .done = std::move(done),
             .begun = std::chrono::steady_clock::now()};
  return ok_status();
}

Status WeightUpdates::update_from_disk(DiskUpdate update, Done done) {
  RETURN_IF_ERROR(begin(std::move(update), std::move(done)));
  PipelineCommand command = command_of(wire::AdminAction::kStageWeights, kStageWeightsMs);
  command.argument = update_.wanted.path;
  command_(std::move(command), [this](const Replies& replies) { on_staged(replies); });
  return ok_status();
}

void WeightUpdates::on_staged(const Replies& replies) {
  if (const Status status = first_failure(replies); !status.ok()) return give_up(status);
  {
    const std::lock_guard lock(mutex_);
    state_.phase = WeightsState::Phase::kSwitching;
  }
  command_(command_of(wire::AdminAction::kSwitchWeights, kSwitchWeightsMs),
           [this](const Replies& switched) { on_switched(switched); });
}

// With one replica switched, the new version is the engine's: the others are left out until they have it. With none, a
// replica that only did not reply may have switched all the same: then it is the one that is left out.
void WeightUpdates::on_switched(const Replies& replies) {
  const Status failure = first_failure(replies);
  if (!any_ok(replies)) {
    serve_(state().version);
    return give_up(failure);
  }
  if (!failure.ok()) LOG_ERROR("weights: not every replica switched: {}", failure.to_string());
  {
    const std::lock_guard lock(mutex_);
    state_.version = update_.version;
    serving_path_ = update_.wanted.path;
    set_label_locked(update_.wanted.label);
  }
  serve_(update_.version);
  end(ok_status());
  if (!failure.ok()) catch_up({.stages = stages_});
}

// What some replicas have staged is of no use.
void WeightUpdates::give_up(const Status& why) {
  command_(command_of(wire::AdminAction::kDropWeights, kPauseMs), [this, why](const Replies&) { end(why); });
}

void WeightUpdates::end(const Status& status) {
  Done done;
  uint64_t version = 0;
  {
    const std::lock_guard lock(mutex_);
    version = update_.version;
    state_.phase = WeightsState::Phase::kIdle;
    ++(status.ok() ? state_.completed : state_.failed);
    if (!status.ok()) state_.last_error = status.message();
    done = std::move(update_.done);
  }
  if (status.ok()) {
    LOG_INFO("weights: version {} serves", label(version));
  } else {
    LOG_WARNING("weights: not updated: {}", status.to_string());
  }
  done(status);
}

void WeightUpdates::on_joined(const std::string& stage, uint32_t replica) {
  if (std::find(stages_.begin(), stages_.end(), stage) == stages_.end()) return;
  PipelineCommand command{.action = wire::AdminAction::kPause, .stages = {stage}, .timeout_ms = kStageWeightsMs};
  command.replica = replica;
  bool paused = false;
  {
    const std::lock_guard lock(mutex_);
    paused = state_.paused;
    command.policy = pause_policy_;
  }
  if (paused) command_(command, report);
  catch_up(std::move(command));
}

// Brings those to the serving version that do not have it; for others there is nothing to do.
void WeightUpdates::catch_up(PipelineCommand command) {
  command.action = wire::AdminAction::kStageWeights;
  command.timeout_ms = kStageWeightsMs;
  command.policy = wire::InFlightPolicy::kInPlace;
  {
    const std::lock_guard lock(mutex_);
    if (serving_path_.empty()) return;
    command.argument = serving_path_;
    command.weight_version = state_.version;
  }
  PipelineCommand then = command;
  then.action = wire::AdminAction::kSwitchWeights;
  command_(std::move(command), [this, then](const Replies& replies) {
    if (!any_ok(replies)) return report(replies);
    command_(then, [](const Replies& switched) { report(switched); });
  });
}

void WeightUpdates::set_paused(bool paused, PipelineCommand command, Done done) {
  if (stages_.empty()) return done(error(StatusCode::kUnsupported, "the pipeline has no stage that generates"));
  command.stages = stages_;
  command.timeout_ms = kPauseMs;
  const wire::InFlightPolicy policy = command.policy;
  command_(std::move(command), [this, paused, policy, done = std::move(done)](const Replies& replies) {
    const Status status = first_failure(replies);
    if (status.ok()) {
      const std::lock_guard lock(mutex_);
      state_.paused = paused;
      pause_policy_ = policy;
    }
    done(status);
  });
}

void WeightUpdates::pause(wire::InFlightPolicy policy, Done done) {
  PipelineCommand command{.action = wire::AdminAction::kPause};
  command.policy = policy;
  set_paused(true, std::move(command), std::move(done));
}

void WeightUpdates::resume(Done done) {
  set_paused(false, PipelineCommand{.action = wire::AdminAction::kContinue}, std::move(done));
}

Status WeightUpdates::set_label(std::string label) {
  RETURN_IF_ERROR(check_label(label));
  const std::lock_guard lock(mutex_);
  set_label_locked(std::move(label));
  return ok_status();
}

// Of the serving version; empty: its number.
void WeightUpdates::set_label_locked(std::string label) {
  if (label.empty()) return;
  labels_[state_.version] = std::move(label);
  if (labels_.size() > kMaxLabels) labels_.erase(labels_.begin());
}

std::string WeightUpdates::label(uint64_t version) const {
  const std::lock_guard lock(mutex_);
  return label_locked(version);
}

std::string WeightUpdates::label_locked(uint64_t version) const {
  const auto known = labels_.find(version);
  return known == labels_.end() ? fmt::format("{}", version) : known->second;
}

WeightsState WeightUpdates::state() const {
  const std::lock_guard lock(mutex_);
  WeightsState state = state_;
  state.label = label_locked(state.version);
  if (state.phase != WeightsState::Phase::kIdle) {
    state.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - update_.begun).count();
  }
  return state;
}

}  // namespace millrace
