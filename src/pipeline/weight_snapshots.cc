#include "pipeline/weight_snapshots.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "pipeline/admin_replies.h"

namespace millrace {

void WeightSnapshots::start_from(uint64_t version, std::string path) {
  const std::lock_guard lock(mutex_);
  state_ = {.version = version, .path = std::move(path), .error = ""};
}

// A snapshot that is being written of older weights goes on at its replica; on_reply() drops its answer, as `wanted_`
// differs.
void WeightSnapshots::want(uint64_t version, std::string label) {
  const std::lock_guard lock(mutex_);
  wanted_ = version;
  label_ = std::move(label);
  failures_ = 0;
  due_ms_ = 0;
  state_.error.clear();
}

bool WeightSnapshots::may_come(uint64_t version) const {
  const std::lock_guard lock(mutex_);
  return !unsupported_ && wanted_ == version;
}

void WeightSnapshots::tick(int64_t now_ms) {
  PipelineCommand command{.action = wire::AdminAction::kWriteWeights, .stages = stages_, .timeout_ms = kWriteWeightsMs};
  {
    const std::lock_guard lock(mutex_);
    now_ms_ = now_ms;
    if (unsupported_ || wanted_ == 0 || wanted_ == asked_ || replicas_ == 0 || now_ms < due_ms_) return;
    asked_ = command.weight_version = wanted_;
    command.argument = label_;
    // Another one at each try: the folder or disk of one host may be the reason.
    command.replica = static_cast<uint32_t>(static_cast<std::size_t>(failures_) % replicas_);
  }
  const uint64_t version = command.weight_version;
  env_.command(std::move(command),
               [this, version](const std::vector<wire::AdminReply>& replies) { on_reply(version, replies); });
}

void WeightSnapshots::on_reply(uint64_t version, const std::vector<wire::AdminReply>& replies) {
  std::string path;
  {
    const std::lock_guard lock(mutex_);
    // Else newer weights are being written, and that try is not over.
    if (asked_ == version) asked_ = 0;
    const Status status = first_failure(replies);
    if (wanted_ != version) return;  // newer weights serve
    // No folder was given for snapshots: for all replicas alike, and for as long as they run.
    if (status.code() == StatusCode::kUnsupported) {
      unsupported_ = true;
      wanted_ = 0;
      return;
    }
    if (!status.ok()) return fail_locked(status);
    wanted_ = 0;
    path = replies.front().message;
    state_ = {.version = version, .path = path, .error = ""};
  }
  LOG_INFO("weights: version {} is kept in {}", version, path);
  // Without the mutex: it calls WeightUpdates, whose own lock may be held while state() is asked here.
  env_.kept(version, path);
}

void WeightSnapshots::fail_locked(const Status& why) {
  state_.error = why.message();
  due_ms_ = now_ms_ + std::min(kSnapshotFirstMs << std::min(failures_, 16), kSnapshotMaxMs);
  LOG_WARNING("weights: no snapshot of version {}: {}", wanted_, why.to_string());
  if (++failures_ >= kSnapshotTries) wanted_ = 0;
}

WeightsSnapshot WeightSnapshots::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

}  // namespace millrace
