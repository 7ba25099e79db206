// WeightUpdates: the updates of the weights of all generating stages together, in two phases over admin commands.
//
//   idle --update--> staging: every replica loads beside its serving weights
//          all staged: switching: every replica switches --all replied--> idle, the new version serves
//          one failed: staged weights are dropped      ------------------> idle, the old version serves
//
// A replica that was staged and does not switch is left with an older version than the engine's: then it is not placed
// (Membership), so that no request meets old weights after the update was reported.
//
// Owner: CoordinatorEngine. Thread safety: all functions from any thread; replies come on the coordinator's thread.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "pipeline/admin_commands.h"
#include "stages/weight_control.h"

namespace millrace {

inline constexpr int64_t kStageWeightsMs = 600'000;  // to load a folder beside the serving weights
inline constexpr int64_t kSwitchWeightsMs = 30'000;  // to end the steps in flight and switch
inline constexpr int64_t kPauseMs = 30'000;
inline constexpr std::size_t kMaxLabels = 1024;  // of versions whose labels are remembered
inline constexpr std::size_t kMaxVersionLabelBytes = 256;

class WeightUpdates : public WeightControl {
 public:
  using Command = std::function<void(PipelineCommand, AdminCommands::Done)>;
  using Serve = std::function<void(uint64_t version)>;  // only replicas with this version are placed from now on

  // `stages`: those with weights; none: everything is refused.
  WeightUpdates(std::vector<std::string> stages, Command command, Serve serve);

  bool has_stages() const { return !stages_.empty(); }
  // A replica has started: it brings the weights of its folder, and is not paused. It gets what the others have.
  void on_joined(const std::string& stage, uint32_t replica);

  Status update_from_disk(DiskUpdate update, Done done) override;
  void pause(wire::InFlightPolicy policy, Done done) override;
  void resume(Done done) override;
  Status set_label(std::string label) override;
  std::string label(uint64_t version) const override;
  WeightsState state() const override;

 private:
  struct Update {
    uint64_t version = 0;
    DiskUpdate wanted;
    Done done;
    std::chrono::steady_clock::time_point begun;
  };
  using Replies = std::vector<wire::AdminReply>;

  Status begin(DiskUpdate update, Done done);
  std::string label_locked(uint64_t version) const;
  void set_label_locked(std::string label);
  PipelineCommand command_of(wire::AdminAction action, int64_t timeout_ms) const;
  void on_staged(const Replies& replies);
  void on_switched(const Replies& replies);
  void give_up(const Status& why);
  void catch_up(PipelineCommand command);
  void end(const Status& status);
  void set_paused(bool paused, PipelineCommand command, Done done);

  const std::vector<std::string> stages_;
  const Command command_;
  const Serve serve_;

  mutable std::mutex mutex_;  // guards what follows; not held while others are called
  WeightsState state_;
  Update update_;  // while state_.phase is not kIdle
  uint64_t next_version_ = 2;
  std::string serving_path_;  // of the folder that serves; empty: each replica's own
  wire::InFlightPolicy pause_policy_{};
  std::map<uint64_t, std::string> labels_;
};

}  // namespace millrace
