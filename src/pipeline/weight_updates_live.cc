// The updates that a trainer broadcasts.
#include <fmt/format.h>

#include <utility>

#include "pipeline/admin_replies.h"
#include "pipeline/weight_updates.h"

namespace millrace {

using Phase = WeightsState::Phase;

Status WeightUpdates::check_live() const {
  if (stages_.size() == 1) return ok_status();
  return error(StatusCode::kUnsupported, "the pipeline has {} stages with weights; wanted one", stages_.size());
}

void WeightUpdates::join_group(const TrainerGroup& group, Done done) {
  if (const Status status = check_live(); !status.ok()) return done(status);
  PipelineCommand command{.action = wire::AdminAction::kJoinGroup, .stages = stages_, .timeout_ms = kJoinGroupMs};
  command.argument = to_json(group);
  env_.command(std::move(command), [done = std::move(done)](const Replies& replies) { done(first_failure(replies)); });
}

void WeightUpdates::leave_group(const std::string& name, Done done) {
  if (const Status status = check_live(); !status.ok()) return done(status);
  bool uses = false;
  {
    const std::lock_guard lock(mutex_);
    uses = state_.phase == Phase::kReceiving && update_.group == name;
  }
  if (uses && begin_abort()) give_up(error(StatusCode::kCancelled, "the group '{}' was destroyed", name));
  PipelineCommand command{.action = wire::AdminAction::kLeaveGroup, .stages = stages_, .timeout_ms = kPauseMs};
  command.argument = name;
  env_.command(std::move(command), [done = std::move(done), uses](const Replies& replies) {
    const Status status = first_failure(replies);
    done(uses && status.code() == StatusCode::kNotFound ? ok_status() : status);  // the abort has left it
  });
}

bool WeightUpdates::is_at(uint64_t version, Phase phase) const {
  const std::lock_guard lock(mutex_);
  return state_.phase == phase && update_.version == version;
}

void WeightUpdates::prepare(const WeightPlan& plan, Done done) {
  Status status = check_live();
  if (status.ok()) status = begin(DiskUpdate{}, nullptr);
  if (!status.ok()) return done(status);
  PipelineCommand command = command_of(wire::AdminAction::kReceiveWeights, kPrepareMs);
  {
    const std::lock_guard lock(mutex_);
    state_.phase = Phase::kReceiving;
    update_.group = plan.group;
    update_.buckets = plan.buckets.size();
    live_failure_ = ok_status();
    command.argument = to_json(plan, state_.version);
  }
  env_.command(std::move(command), [this, version = command.weight_version, done = std::move(done)](
                                       const Replies& replies) { on_ready(version, replies, done); });
}

// All replicas wait for the first broadcast, or none will: the trainer learns of it before it sends anything.
void WeightUpdates::on_ready(uint64_t version, const Replies& replies, const Done& done) {
  const Status status = first_failure(replies);
  if (!is_at(version, Phase::kReceiving)) {
    return done(error(StatusCode::kCancelled, "the update to weight version {} was aborted", version));
  }
  if (!status.ok()) {
    {
      const std::lock_guard lock(mutex_);
      update_.done = done;
    }
    return give_up(status);
  }
  env_.command(command_of(wire::AdminAction::kAwaitWeights, kReceiveWeightsMs),
               [this, version](const Replies& received) { on_received(version, received); });
  done(ok_status());
}

void WeightUpdates::on_received(uint64_t version, const Replies& replies) {
  if (!is_at(version, Phase::kReceiving)) return;  // it was aborted
  if (const Status status = first_failure(replies); !status.ok()) return give_up(status);
  const Result<uint64_t> checksum = same_checksum(replies);
  if (!checksum.ok()) return give_up(checksum.status());
  bool completing = false;
  {
    const std::lock_guard lock(mutex_);
    state_.phase = Phase::kStaged;
    update_.checksum = *checksum;
    completing = update_.completing;
  }
  completing ? switch_all() : hold(version);
}

// A trainer that died after its last broadcast must not hold the memory of its weights for ever.
void WeightUpdates::hold(uint64_t version) {
  env_.command(command_of(wire::AdminAction::kHoldWeights, kHoldStagedMs), [this, version](const Replies& replies) {
    const Status status = first_failure(replies);
    if (status.ok() || !is_at(version, Phase::kStaged)) return;
    give_up(error(StatusCode::kDeadline, "no /complete_weights_update within {} s: {}", kHoldStagedMs / 1000,
                  status.message()));
  });
}

// True: all is staged, and the switch may begin.
Result<bool> WeightUpdates::begin_completion(LiveCompletion completion, Done done) {
  RETURN_IF_ERROR(check_label(completion.label));
  const std::lock_guard lock(mutex_);
  if (!live_failure_.ok() && state_.phase == Phase::kIdle) return std::exchange(live_failure_, ok_status());
  const bool live = state_.phase == Phase::kReceiving || state_.phase == Phase::kStaged;
  if (!live || update_.completing) {
    return error(StatusCode::kConflict, "the state of the weights is '{}'; wanted an update that was prepared",
                 phase_name(state_.phase));
  }
  if (completion.group != update_.group) {
    return error(StatusCode::kConflict, "group_name is '{}'; wanted '{}', which sends the weights", completion.group,
                 update_.group);
  }
  update_.wanted.label = std::move(completion.label);
  update_.wanted.policy = completion.policy;
  update_.wanted.flush_cache = completion.flush_cache;
  update_.completing = true;
  update_.done = std::move(done);
  return state_.phase == Phase::kStaged;
}

void WeightUpdates::complete(LiveCompletion completion, Updated done) {
  const auto end = [this, done](const Status& status) {
    if (!status.ok()) return done(status);
    LiveUpdated updated;
    {
      const std::lock_guard lock(mutex_);
      updated = {update_.buckets, label_locked(state_.version)};
    }
    done(updated);
  };
  const Result<bool> staged = begin_completion(std::move(completion), end);
  if (!staged.ok()) return done(staged.status());
  if (*staged) switch_all();
}

// False: nothing could be aborted.
bool WeightUpdates::begin_abort() {
  const std::lock_guard lock(mutex_);
  if (state_.phase != Phase::kReceiving && state_.phase != Phase::kStaged) return false;
  state_.phase = Phase::kStaging;  // until what is staged was dropped
  return true;
}

void WeightUpdates::abort_update(Done done) {
  if (!begin_abort()) {
    const std::lock_guard lock(mutex_);
    const bool cleared = !std::exchange(live_failure_, ok_status()).ok();
    return done(cleared ? ok_status()
                        : error(StatusCode::kConflict,
                                "the state of the weights is '{}'; wanted an update that a trainer "
                                "sends, before its switch",
                                phase_name(state_.phase)));
  }
  const Status why = error(StatusCode::kCancelled, "the update was aborted");
  Done completing;
  {
    const std::lock_guard lock(mutex_);
    completing = std::move(update_.done);
    // The abort is answered when nothing is staged any more.
    update_.done = [done = std::move(done), completing](const Status& status) {
      if (completing) completing(status);
      done(ok_status());
    };
  }
  give_up(why);
}

}  // namespace millrace
