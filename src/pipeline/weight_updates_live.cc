// The updates that a trainer broadcasts.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "pipeline/admin_replies.h"
#include "pipeline/weight_updates.h"

namespace millrace {

using Phase = WeightsState::Phase;

Status WeightUpdates::check_live() const {
  if (one_model_) return ok_status();
  return error(StatusCode::kUnsupported, "the pipeline has {} stages with weights; wanted one", stages_.size());
}

// One replica that cannot join ends it for all: none of them would get its rank's connections.
void WeightUpdates::join_group(const TrainerGroup& group, Done done) {
  if (const Status status = check_live(); !status.ok()) return done(status);
  PipelineCommand command{.action = wire::AdminAction::kJoinGroup, .stages = stages_, .timeout_ms = kJoinGroupMs};
  command.argument = to_json(group);
  command.ends_early = true;
  // The trainer waits for so many ranks behind its own. More replicas than that are not in the group, and their loss is
  // none of its.
  const auto needed = static_cast<uint32_t>(group.world_size - group.rank_offset);
  command.needed = needed;
  env_.command(std::move(command), [this, name = group.name, needed, done = std::move(done)](const Replies& replies) {
    const Status status = first_failure(replies, needed);
    if (!status.ok()) leave_failed_group(name, status);
    done(status);
  });
}

// The other replicas stop to wait for its ranks. A join that was cancelled left them in another group, or in none.
void WeightUpdates::leave_failed_group(const std::string& name, const Status& why) {
  LOG_WARNING("weights: the group '{}' was not joined: {}", name, why.to_string());
  {
    const std::lock_guard lock(mutex_);
    state_.last_error = why.message();
  }
  if (why.code() == StatusCode::kCancelled) return;
  PipelineCommand command{.action = wire::AdminAction::kLeaveGroup, .stages = stages_, .timeout_ms = kPauseMs};
  command.argument = name;
  env_.command(std::move(command), [](const Replies&) {});
}

void WeightUpdates::leave_group(const std::string& name, Done done) {
  if (const Status status = check_live(); !status.ok()) return done(status);
  bool uses = false;
  {
    const std::lock_guard lock(mutex_);
    uses = state_.phase == Phase::kReceiving && update_.group == name;
  }
  // First the update, then the group: its broadcasts would never end otherwise. It may have failed since.
  if (uses) {
    const Result<BegunAbort> begun = begin_abort(name, nullptr);
    if (begun.ok() && begun->staged) give_up(error(StatusCode::kCancelled, "the group '{}' was destroyed", name));
  }
  PipelineCommand command{.action = wire::AdminAction::kLeaveGroup, .stages = stages_, .timeout_ms = kPauseMs};
  command.argument = name;
  env_.command(std::move(command), [done = std::move(done), uses](const Replies& replies) {
    const Status status = first_failure(replies);
    done(uses && status.code() == StatusCode::kNotFound ? ok_status() : status);  // the abort has left it
  });
}

// Replies come late: each continuation asks whether its update is still the present one, and in the phase that it
// belongs to.
bool WeightUpdates::is_at(uint64_t version, Phase phase) const {
  const std::lock_guard lock(mutex_);
  return state_.phase == phase && update_.version == version;
}

// OK: the phase is kReceiving, for a new update or for another round of the staged one.
Status WeightUpdates::begin_round(const WeightPlan& plan) {
  bool continues = false;
  {
    const std::lock_guard lock(mutex_);
    // next_round is set by complete(last: false) alone: a second prepare() without it is a new update, which is refused
    // while this one is open.
    continues = state_.phase == Phase::kStaged && update_.next_round && !update_.dropping;
    if (continues && plan.group != update_.group) {
      return error(StatusCode::kConflict, "group_name is '{}'; wanted '{}', which has sent a part of the weights",
                   plan.group.substr(0, 256), update_.group);
    }
    if (continues && update_.rounds >= kMaxRounds) {
      return error(StatusCode::kResourceExhausted, "the update has {} rounds, the limit", update_.rounds);
    }
  }
  // Without `done`: prepare() has its own answer, and complete() brings that of the update.
  if (!continues) RETURN_IF_ERROR(begin(DiskUpdate{}, nullptr));
  const std::lock_guard lock(mutex_);
  state_.phase = Phase::kReceiving;
  update_.group = plan.group;
  update_.next_round = false;
  ++update_.rounds;
  // What earlier rounds have brought, as the replicas count each round from 0.
  update_.buckets = continues ? state_.buckets : 0;
  update_.bytes = continues ? state_.bytes : 0;
  // The failure of an update before this one is of no interest any more.
  live_failure_ = ok_status();
  state_.group = plan.group;
  state_.buckets_received = update_.buckets, state_.bytes_received = update_.bytes;
  state_.buckets = update_.buckets + plan.buckets.size();
  state_.bytes = update_.bytes + plan.size_bytes();
  return ok_status();
}

void WeightUpdates::prepare(const WeightPlan& plan, Done done) {
  Status status = check_live();
  if (status.ok()) status = begin_round(plan);
  if (!status.ok()) return done(status);
  PipelineCommand command = command_of(wire::AdminAction::kReceiveWeights, kPrepareMs);
  command.ends_early = true;
  {
    const std::lock_guard lock(mutex_);
    // With the serving version: a plan of differences applies to that one and no other.
    command.argument = to_json(plan, state_.version, update_.rounds - 1);
  }
  const uint64_t version = command.weight_version;
  env_.command(std::move(command),
               [this, version, done = std::move(done)](const Replies& replies) { on_ready(version, replies, done); });
}

// All replicas wait for the first broadcast, or none will: the trainer learns of it before it sends anything.
void WeightUpdates::on_ready(uint64_t version, const Replies& replies, const Done& done) {
  const Status status = first_failure(replies);
  // Aborted while the replicas prepared; the abort has sent kDropWeights.
  if (!is_at(version, Phase::kReceiving)) {
    return done(error(StatusCode::kCancelled, "the update to weight version {} was aborted", version));
  }
  if (!status.ok()) {
    {
      const std::lock_guard lock(mutex_);
      // The trainer waits for prepare(): it gets the reason when nothing is left of the update, and so does a
      // complete() that came meanwhile.
      update_.done = [done, completing = std::move(update_.done)](const Status& why) {
        if (completing) completing(why);
        done(why);
      };
    }
    return give_up(status);
  }
  PipelineCommand command = command_of(wire::AdminAction::kAwaitWeights, kReceiveWeightsMs);
  command.ends_early = true;
  env_.command(std::move(command), [this, version](const Replies& received) { on_received(version, received); });
  // Behind kAwaitWeights: with this answer the trainer begins to broadcast.
  done(ok_status());
}

void WeightUpdates::on_received(uint64_t version, const Replies& replies) {
  if (!is_at(version, Phase::kReceiving)) return;  // it was aborted
  if (const Status status = first_failure(replies); !status.ok()) return give_up(status);
  const Result<uint64_t> checksum = same_checksum(replies);
  if (!checksum.ok()) return give_up(checksum.status());
  bool switches = false;
  Done round;  // of a complete() that waits for this round alone
  {
    const std::lock_guard lock(mutex_);
    // An abort may have come since is_at().
    if (state_.phase != Phase::kReceiving || update_.version != version) return;
    // complete() came before the last byte: it is answered by the switch. No abort comes between the two phases.
    switches = update_.completing && update_.last;
    state_.phase = switches ? Phase::kSwitching : Phase::kStaged;
    // The heartbeats may be one behind.
    state_.buckets_received = state_.buckets, state_.bytes_received = state_.bytes;
    update_.checksum = *checksum;
    if (update_.completing && !switches) {
      round = std::exchange(update_.done, nullptr);
      end_round_locked();
    }
  }
  if (switches) return switch_all();
  hold(version);
  if (round) round(ok_status());
}

// What is staged waits for another round.
void WeightUpdates::end_round_locked() {
  update_.completing = false;
  update_.next_round = true;
}

// A complete() that has waited for its time; the update goes on.
void WeightUpdates::end_late_completion(int64_t now_ms) {
  Done done;
  std::string message;
  {
    const std::lock_guard lock(mutex_);
    const bool late = update_.completing && update_.complete_by_ms != 0 && now_ms >= update_.complete_by_ms;
    // Once the switch has begun it is too late to answer that nothing was switched.
    if (state_.phase != Phase::kReceiving || update_.dropping || !late) return;
    update_.completing = false;
    done = std::exchange(update_.done, nullptr);
    message =
        fmt::format("{} of {} buckets and {} of {} bytes received: the update goes on; complete it again or abort it",
                    state_.buckets_received, state_.buckets, state_.bytes_received, state_.bytes);
  }
  done(error(StatusCode::kDeadline, "{}", message));
}

// A trainer that died after its last broadcast must not hold the memory of its weights for ever.
void WeightUpdates::hold(uint64_t version) {
  env_.command(command_of(wire::AdminAction::kHoldWeights, kHoldStagedMs), [this, version](const Replies& replies) {
    const Status status = first_failure(replies);
    // OK is the stages' answer when what they hold serves, was dropped, or goes on with another round.
    if (status.ok() || !is_at(version, Phase::kStaged)) return;
    give_up(error(StatusCode::kDeadline, "no /complete_weights_update within {} s: {}", kHoldStagedMs / 1000,
                  status.message()));
  });
}

// True: all is staged. The phase is kSwitching, or the round has ended, so that an abort finds nothing to end.
Result<bool> WeightUpdates::begin_completion(LiveCompletion completion, Done done) {
  RETURN_IF_ERROR(check_label(completion.label));
  const std::lock_guard lock(mutex_);
  // Once: a repeated complete() then gets the conflict below.
  if (!live_failure_.ok() && state_.phase == Phase::kIdle) return std::exchange(live_failure_, ok_status());
  const bool live = state_.phase == Phase::kReceiving || state_.phase == Phase::kStaged;
  // Where it is being dropped and has a `done`, that is the prepare() that failed, or an abort.
  if (!live || update_.completing || (update_.dropping && update_.done)) {
    return error(StatusCode::kConflict, "the state of the weights is '{}'; wanted an update that was prepared",
                 phase_name(state_.phase));
  }
  if (completion.group != update_.group) {
    return error(StatusCode::kConflict, "group_name is '{}'; wanted '{}', which sends the weights", completion.group,
                 update_.group);
  }
  update_.completing = true;
  if (update_.dropping) {
    update_.done = std::move(done);  // it has failed: the reason comes with its end
    return false;
  }
  update_.wanted.label = std::move(completion.label);
  update_.wanted.policy = completion.policy;
  update_.wanted.flush_cache = completion.flush_cache;
  update_.last = completion.last;
  update_.next_round = false;
  update_.complete_by_ms = completion.timeout_ms == 0 ? 0 : now_ms_ + completion.timeout_ms;
  const bool staged = state_.phase == Phase::kStaged;
  if (staged && !update_.last) {
    end_round_locked();
    return true;  // the caller answers
  }
  update_.done = std::move(done);
  if (staged) state_.phase = Phase::kSwitching;
  return staged;
}

void WeightUpdates::complete(LiveCompletion completion, Updated done) {
  // The label is read when the switch is over: by then state_.version is the new one.
  const auto end = [this, done](const Status& status) {
    if (!status.ok()) return done(status);
    LiveUpdated updated;
    {
      const std::lock_guard lock(mutex_);
      updated = {state_.buckets, label_locked(state_.version)};
    }
    done(updated);
  };
  const bool last = completion.last;
  const Result<bool> staged = begin_completion(std::move(completion), end);
  if (!staged.ok()) return done(staged.status());
  if (*staged) last ? switch_all() : end(ok_status());
}

void WeightUpdates::receive_and_complete(const WeightPlan& plan, LiveCompletion completion, Updated done) {
  prepare(plan, [this, completion = std::move(completion), done = std::move(done)](const Status& ready) {
    if (!ready.ok()) return done(ready);
    complete(completion, done);
  });
}

// Not OK: nothing was aborted. `done` may be none. Where nothing is left of the update, it is the caller's to call.
Result<WeightUpdates::BegunAbort> WeightUpdates::begin_abort(const std::optional<std::string>& group,
                                                             const Done& done) {
  const std::lock_guard lock(mutex_);
  const bool under_way = state_.phase == Phase::kReceiving || state_.phase == Phase::kStaged;
  if (!under_way && (state_.phase != Phase::kIdle || live_failure_.ok())) {
    return error(StatusCode::kConflict,
                 "the state of the weights is '{}'; wanted an update that a trainer sends, before its switch",
                 phase_name(state_.phase));
  }
  if (group && *group != update_.group) {
    return error(StatusCode::kConflict, "group_name is '{}'; wanted '{}', which sends the weights",
                 group->substr(0, 256), update_.group);
  }
  if (!under_way) {  // it had failed
    live_failure_ = ok_status();
    return BegunAbort{};
  }
  // No phase in which anything else may begin or complete.
  state_.phase = Phase::kStaging;
  if (done) {
    // A complete() that waits gets the reason, and before the abort its answer.
    update_.done = [done, completing = std::move(update_.done)](const Status& status) {
      if (completing) completing(status);
      done(ok_status());
    };
  }
  return BegunAbort{.staged = true,
                    .why = fmt::format("the update of the group '{}' was aborted with {} of {} buckets received",
                                       update_.group, state_.buckets_received, state_.buckets)};
}

void WeightUpdates::abort_update(const std::optional<std::string>& group, Done done) {
  const Result<BegunAbort> begun = begin_abort(group, done);
  if (!begun.ok()) return done(begun.status());
  if (!begun->staged) return done(ok_status());
  give_up(error(StatusCode::kCancelled, "{}", begun->why));
}

void WeightUpdates::inspect(std::string request, Inspected done) {
  if (const Status status = check_live(); !status.ok()) return done(status);
  PipelineCommand command{
      .action = wire::AdminAction::kInspectWeights, .stages = stages_, .timeout_ms = kInspectWeightsMs};
  command.argument = std::move(request);
  env_.command(std::move(command), [done = std::move(done)](const Replies& replies) {
    if (const Status status = first_failure(replies); !status.ok()) return done(status);
    std::vector<std::string> answers;
    for (const wire::AdminReply& reply : replies) {
      if (reply.code == StatusCode::kOk) answers.push_back(reply.message);
    }
    done(answers);
  });
}

void WeightUpdates::on_status(const std::vector<wire::StageStatus>& statuses) {
  const std::lock_guard lock(mutex_);
  if (state_.phase != Phase::kReceiving) return;
  // Of this round, and the least of any replica: the update is as far as its slowest one.
  uint64_t buckets = state_.buckets - update_.buckets, bytes = state_.bytes - update_.bytes;
  bool any = false;
  for (const wire::StageStatus& status : statuses) {
    std::map<std::string, uint64_t> found;
    for (const wire::Metric& metric : status.metrics) found[metric.name] = static_cast<uint64_t>(metric.value);
    // A heartbeat from before this update, or of a stage without weights.
    if (found[kReceivingVersionMetric] != update_.version) continue;
    any = true;
    buckets = std::min(buckets, found[kReceivedBucketsMetric]);
    bytes = std::min(bytes, found[kReceivedBytesMetric]);
  }
  if (!any) return;
  // Never back: a replica that joins late or sends an old heartbeat would make it fall.
  state_.buckets_received = std::max(state_.buckets_received, update_.buckets + buckets);
  state_.bytes_received = std::max(state_.bytes_received, update_.bytes + bytes);
}

}  // namespace millrace
