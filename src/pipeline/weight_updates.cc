#include "pipeline/weight_updates.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "pipeline/admin_replies.h"

namespace millrace {
namespace {

int64_t backoff_ms(int failures) { return std::min(kCatchUpFirstMs << std::min(failures, 16), kCatchUpMaxMs); }

}  // namespace

WeightUpdates::WeightUpdates(std::vector<std::string> stages, Env env, bool one_model, std::size_t replicas)
    : stages_(std::move(stages)),
      one_model_(one_model || stages_.size() == 1),
      env_(std::move(env)),
      pauses_(stages_, {env_.command, env_.hold, env_.in_flight}),
      snapshots_({stages_.begin(), stages_.begin() + (stages_.empty() ? 0 : 1)},  // whose replicas all have them
                 replicas,
                 {env_.command, [this](uint64_t version, const std::string& path) { on_kept(version, path); }}) {}

void WeightUpdates::start_from(const StartWeights& start) {
  {
    const std::lock_guard lock(mutex_);
    CHECK(start.version > 0 && state_.phase == WeightsState::Phase::kIdle && state_.version == 1);
    state_.version = start.version;
    next_version_ = start.version + 1;
    serving_path_ = start.path;
    if (check_label(start.label).ok()) set_label_locked(start.version, start.label);
  }
  snapshots_.start_from(start.version, start.path);
  env_.require({.version = start.version, .checksum = start.checksum});
  LOG_INFO("weights: version {} serves from the snapshot {}", label(start.version), start.path);
}

// ---- updates

PipelineCommand WeightUpdates::command_of(wire::AdminAction action, int64_t timeout_ms) const {
  PipelineCommand command{.action = action, .stages = stages_, .timeout_ms = timeout_ms};
  const std::lock_guard lock(mutex_);
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
  const std::string path = update.path;
  // From here on `done` is in update_, and end() calls it.
  RETURN_IF_ERROR(begin(std::move(update), std::move(done)));
  PipelineCommand command = command_of(wire::AdminAction::kStageWeights, kStageWeightsMs);
  command.argument = path;
  env_.command(std::move(command), [this](const Replies& replies) { on_staged(replies); });
  return ok_status();
}

void WeightUpdates::on_staged(const Replies& replies) {
  if (const Status status = first_failure(replies); !status.ok()) return give_up(status);
  const Result<uint64_t> checksum = same_checksum(replies);
  if (!checksum.ok()) return give_up(checksum.status());
  {
    const std::lock_guard lock(mutex_);
    update_.checksum = *checksum;
  }
  switch_all();
}

void WeightUpdates::switch_all() {
  RequiredWeights next;
  {
    const std::lock_guard lock(mutex_);
    state_.phase = WeightsState::Phase::kSwitching;
    next = {.version = update_.version, .checksum = update_.checksum};
    // The first replica may give tokens of the new weights long before the last one has replied.
    set_label_locked(update_.version, update_.wanted.label);
  }
  env_.accept(next);  // no gap between two switches
  env_.command(command_of(wire::AdminAction::kSwitchWeights, kSwitchWeightsMs),
               [this](const Replies& switched) { on_switched(switched); });
}

// With one replica switched, the new version is the engine's: the others are left out until they have it. With none, a
// replica that only did not reply may have switched all the same: then it is the one that is left out.
void WeightUpdates::on_switched(const Replies& replies) {
  const Status failure = first_failure(replies);
  if (!any_ok(replies)) {
    env_.accept({});
    {
      const std::lock_guard lock(mutex_);
      labels_.erase(update_.version);
    }
    return give_up(failure);
  }
  if (!failure.ok()) LOG_WARNING("weights: not every replica switched: {}", failure.to_string());
  RequiredWeights serving;
  bool live = false;
  {
    const std::lock_guard lock(mutex_);
    serving = {.version = update_.version, .checksum = update_.checksum};
    state_.version = update_.version;
    state_.paused_requests = 0;
    for (const wire::AdminReply& reply : replies) state_.paused_requests += reply.weights.paused_requests;
    serving_path_ = update_.wanted.path;
    serving_live_ = live = update_.rounds > 0;
  }
  // Ends accept() as well: from now on a replica with the old version is stale.
  env_.require(serving);
  // Weights from a folder need no snapshot; those of a trainer are nowhere else than in the replicas.
  if (live) {
    snapshots_.want(serving.version, label(serving.version));
  } else {
    snapshots_.drop();
  }
  end(ok_status());
}

// From now on it is as if they had come from this folder.
void WeightUpdates::on_kept(uint64_t version, const std::string& path) {
  const std::lock_guard lock(mutex_);
  // Other weights serve by now; the folder has those of before.
  if (version != state_.version || !serving_live_) return;
  serving_path_ = path;
  serving_live_ = false;
}

// What some replicas have staged is of no use.
void WeightUpdates::give_up(const Status& why) {
  {
    const std::lock_guard lock(mutex_);
    // One end for each update: a second drop could meet the next one.
    if (std::exchange(update_.dropping, true)) return;
  }
  // The phase stays until the replies are here: a next update that stages before would have its weights dropped.
  env_.command(command_of(wire::AdminAction::kDropWeights, kPauseMs), [this, why](const Replies&) { end(why); });
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
    // Out of update_ before it is called: `done` may begin the next update.
    done = std::move(update_.done);
    // No call waits, as between prepare() and complete(): the next complete() reports it.
    if (!done && !status.ok()) live_failure_ = status;
  }
  if (status.ok()) {
    LOG_INFO("weights: version {} serves", label(version));
  } else {
    LOG_WARNING("weights: not updated: {}", status.to_string());
  }
  if (done) done(status);
}

// ---- replicas that are started again, or missed an update

void WeightUpdates::on_joined(const std::string& stage, uint32_t replica) {
  if (std::find(stages_.begin(), stages_.end(), stage) == stages_.end()) return;
  {
    const std::lock_guard lock(mutex_);
    if (const auto known = catch_ups_.find({stage, replica}); known != catch_ups_.end() && !known->second.running) {
      catch_ups_.erase(known);  // another process: its first try is due at once
    }
  }
  pauses_.on_joined(stage, replica);
}

void WeightUpdates::on_known(const KnownWeights& known) {
  {
    const std::lock_guard lock(mutex_);
    // A version names one set of bytes for as long as any replica has it: a number that is in use must not be given
    // again.
    next_version_ = std::max(next_version_, std::max(known.newest, known.required) + 1);
    const bool unknown = known.required != 0 && known.required != state_.version;
    // on_switched() sets state_.version before it calls require(): in between they differ, and the phase is still
    // kSwitching.
    if (!unknown || state_.phase != WeightsState::Phase::kIdle) return;
    state_.version = known.required;
    serving_path_.clear();
    serving_live_ = true;
  }
  LOG_INFO("weights: version {} serves, of an update before this server's start", known.required);
}

void WeightUpdates::tick(int64_t now_ms, const std::vector<StaleReplica>& stale) {
  std::vector<StaleReplica> due;
  bool updating = false;
  uint64_t serving = 0;  // that can be loaded
  {
    const std::lock_guard lock(mutex_);
    now_ms_ = now_ms;
    serving = serving_live_ ? 0 : state_.version;
    updating = state_.phase != WeightsState::Phase::kIdle;
    // Marked anew by each tick: those that are not stale any more go below, with their failures.
    for (auto& [key, one] : catch_ups_) one.stale = false;
    for (const StaleReplica& replica : stale) {
      CatchUp& one = catch_ups_[{replica.stage, replica.replica}];
      one.stale = true;
      if (!updating && replica.wanted.version == serving && may_begin_locked(one, now_ms)) due.push_back(replica);
    }
    std::erase_if(catch_ups_, [](const auto& entry) { return !entry.second.stale && !entry.second.running; });
  }
  // From here on without the mutex: all of these call the environment, which may call back at once.
  end_late_completion(now_ms);
  pauses_.tick(now_ms);
  snapshots_.tick(now_ms);
  for (const StaleReplica& replica : due) catch_up(replica);
  for (const StaleReplica& replica : stale) {
    if (updating) note({replica.stage, replica.replica}, "it waits for the end of the update that is under way");
    if (replica.wanted.version == serving || updating) continue;
    note({replica.stage, replica.replica}, snapshots_.may_come(replica.wanted.version)
                                               ? "it waits for a snapshot of them"
                                               : "this server does not know where they come from: update the weights");
  }
}

bool WeightUpdates::may_begin_locked(CatchUp& one, int64_t now_ms) {
  const auto running =
      std::count_if(catch_ups_.begin(), catch_ups_.end(), [](const auto& e) { return e.second.running; });
  if (one.running || now_ms < one.due_ms || static_cast<std::size_t>(running) >= kMaxCatchUps) return false;
  return one.running = true;
}

// The weights that serve, or nothing: a folder with others is refused by the replica.
void WeightUpdates::catch_up(const StaleReplica& stale) {
  const StageReplica replica{stale.stage, stale.replica};
  PipelineCommand command{
      .action = wire::AdminAction::kStageWeights, .stages = {stale.stage}, .timeout_ms = kStageWeightsMs};
  command.replica = stale.replica;
  command.weight_version = stale.wanted.version;
  command.weights_checksum = stale.wanted.checksum;
  {
    const std::lock_guard lock(mutex_);
    command.argument = serving_path_;
  }
  note(replica, fmt::format("it loads {}", command.argument.empty() ? "the model's folder" : command.argument));
  // The switch names the same version and checksum, so what another update has staged meanwhile is not switched to.
  PipelineCommand then = command;
  then.action = wire::AdminAction::kSwitchWeights;
  then.timeout_ms = kSwitchWeightsMs;
  env_.command(std::move(command), [this, then, replica](const Replies& staged) {
    if (!any_ok(staged)) return end_catch_up(replica, staged);
    env_.command(then, [this, replica](const Replies& switched) { end_catch_up(replica, switched); });
  });
}

// A try has ended. Whether the replica is still stale, the next tick shows.
void WeightUpdates::end_catch_up(const StageReplica& replica, const Replies& replies) {
  const Status status = first_failure(replies);
  int64_t wait_ms = 0;
  {
    const std::lock_guard lock(mutex_);
    CatchUp& one = catch_ups_[{replica.stage, replica.replica}];
    one.running = false;
    // An update has dropped what was staged: no fault of the replica, and it is tried again at once.
    const bool superseded = status.code() == StatusCode::kCancelled;
    if (!status.ok() && !superseded) wait_ms = backoff_ms(one.failures++);
    one.due_ms = now_ms_ + wait_ms;
  }
  if (status.ok()) return note(replica, "");
  LOG_WARNING("weights: a stale replica is not updated yet: {}", status.to_string());
  note(replica, fmt::format("{}; trying again in {:g} s", status.message(), static_cast<double>(wait_ms) / 1000));
}

// Each text once: tick() comes often.
void WeightUpdates::note(const StageReplica& replica, std::string text) {
  {
    const std::lock_guard lock(mutex_);
    CatchUp& one = catch_ups_[{replica.stage, replica.replica}];
    if (one.note == text) return;
    one.note = text;
  }
  env_.note(replica, std::move(text));
}

// ---- labels

Status WeightUpdates::set_label(std::string label) {
  RETURN_IF_ERROR(check_label(label));
  const std::lock_guard lock(mutex_);
  set_label_locked(state_.version, std::move(label));
  return ok_status();
}

// Empty: its number.
void WeightUpdates::set_label_locked(uint64_t version, std::string label) {
  if (label.empty()) return;
  labels_[version] = std::move(label);
  // The lowest version: the map is sorted, and versions grow.
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
  const Pauses::State pauses = pauses_.state();
  state.snapshot = snapshots_.state();
  state.paused = pauses.paused, state.pausing = pauses.pausing;
  state.label = label_locked(state.version);
  if (state.phase != WeightsState::Phase::kIdle) {
    state.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - update_.begun).count();
  }
  return state;
}

}  // namespace millrace
