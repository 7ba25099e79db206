// WeightUpdates: the updates of the weights of all generating stages together, in two phases over admin commands.
//
//   idle --update--> staging: every replica loads beside its serving weights
//          all staged the same: switching: every replica switches --all replied--> idle, the new version serves
//          one failed: staged weights are dropped             ------------------> idle, the old version serves
//
//   idle --prepare--> receiving: every replica receives what a trainer broadcasts
//          all the same: staged, until complete(): switching, as above
//          complete(last: false): staged, until prepare() begins another round, which is received in addition
//          one failed, abort_update(), or kHoldStagedMs -> idle, the old version serves; complete() reports why, once
//
// A replica that missed an update or was started again is stale: it is not placed (Membership), so that no request
// meets old weights after the update was reported. tick() brings each stale replica to the serving version, and tries
// again until it is there:
//
//   stale --due--> loading --staged--> switching --> serves
//     ^--wait: kCatchUpFirstMs, doubled, kCatchUpMaxMs at most--'failed
//
// Weights that a trainer sent can be loaded once a snapshot of them is written (WeightSnapshots); without one, a stale
// replica waits for the next update.
//
// While an update is under way no replica begins to catch up: the update is for stale ones too.
//
// The same bytes under one version: a replica stages weights only where their checksum is that of the update's first
// replica, so that a folder whose files were replaced since is refused.
//
// Owner: CoordinatorEngine. Thread safety: all functions from any thread, tick() from the coordinator's alone; replies
// come on the coordinator's thread.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "pipeline/admin_commands.h"
#include "pipeline/pauses.h"
#include "pipeline/weight_snapshots.h"
#include "stages/generating/start_weights.h"
#include "stages/weight_control.h"

namespace millrace {

inline constexpr int64_t kStageWeightsMs = 600'000;    // to load a folder beside the serving weights
inline constexpr int64_t kSwitchWeightsMs = 30'000;    // to end the steps in flight and switch
inline constexpr int64_t kJoinGroupMs = 120'000;       // until all ranks of a trainer's group have joined
inline constexpr int64_t kPrepareMs = 30'000;          // to check the tensors and begin to receive
inline constexpr int64_t kReceiveWeightsMs = 660'000;  // the stages give up before
inline constexpr int64_t kHoldStagedMs = 600'000;      // from the last byte to complete()
inline constexpr int kMaxRounds = 4096;                // of one trainer's update
inline constexpr int64_t kInspectWeightsMs = 30'000;   // to show what serves
inline constexpr int64_t kCatchUpFirstMs = 250, kCatchUpMaxMs = 30'000;  // between two tries of a stale replica
inline constexpr std::size_t kMaxCatchUps = 4;   // replicas that load at the same time; the others wait
inline constexpr std::size_t kMaxLabels = 1024;  // of versions whose labels are remembered
inline constexpr std::size_t kMaxVersionLabelBytes = 256;

class WeightUpdates : public WeightControl {
 public:
  // What it needs of the coordinator. Called on any thread, without a lock of this class.
  struct Env {
    std::function<void(PipelineCommand, AdminCommands::Done)> command;
    // Only replicas with these weights are placed from now on; with these too, while a switch is under way (version 0:
    // it is over).
    std::function<void(RequiredWeights)> require;
    std::function<void(RequiredWeights)> accept;
    // What is done about a stale replica, for /ready.
    std::function<void(const StageReplica&, std::string)> note;
    std::function<void(bool)> hold;  // this and the next one as in Pauses
    std::function<std::size_t()> in_flight;
  };

  // `stages`: those with weights; none: everything is refused. `one_model`: they all have the same one; else a
  // trainer's update is refused where there are several. `replicas`: of the first one, which writes the snapshots.
  WeightUpdates(std::vector<std::string> stages, Env env, bool one_model = false, std::size_t replicas = 1);

  // Before stages start: they load these weights, and replicas that have others are stale.
  void start_from(const StartWeights& start);

  bool has_stages() const { return !stages_.empty(); }
  const std::vector<std::string>& stages() const { return stages_; }
  // A replica has started: it is not paused, as the others may be.
  void on_joined(const std::string& stage, uint32_t replica);
  // What the replicas were found to have. Those of other hosts may have weights of an update before this server's
  // start: they serve under their number, no folder of theirs is known, and the next update has a number behind theirs.
  // Before each tick().
  void on_known(const KnownWeights& known);
  // `stale`: all replicas that work and have another version than the one that serves.
  void tick(int64_t now_ms, const std::vector<StaleReplica>& stale);
  // The last heartbeats of all replicas: how much of a trainer's update has come.
  void on_status(const std::vector<wire::StageStatus>& statuses);

  Status update_from_disk(DiskUpdate update, Done done) override;
  void join_group(const TrainerGroup& group, Done done) override;
  void leave_group(const std::string& name, Done done) override;
  void prepare(const WeightPlan& plan, Done done) override;
  void complete(LiveCompletion completion, Updated done) override;
  void receive_and_complete(const WeightPlan& plan, LiveCompletion completion, Updated done) override;
  void abort_update(const std::optional<std::string>& group, Done done) override;
  void inspect(std::string request, Inspected done) override;
  void pause(wire::InFlightPolicy policy, Done done) override { pauses_.pause(policy, std::move(done)); }
  void pause_when_idle(Done done) override { pauses_.pause_when_idle(std::move(done)); }
  void resume(Done done) override { pauses_.resume(std::move(done)); }
  Status set_label(std::string label) override;
  std::string label(uint64_t version) const override;
  WeightsState state() const override;

 private:
  struct Update {
    uint64_t version = 0;
    uint64_t checksum = 0;  // of what the replicas have staged
    DiskUpdate wanted;
    Done done;
    std::chrono::steady_clock::time_point begun;
    std::string group;           // of the trainer that sends it; empty: it is one from disk
    int rounds = 0;              // that were prepared
    uint64_t buckets = 0;        // of the rounds before this one, received
    uint64_t bytes = 0;          // theirs
    bool completing = false;     // complete() waits for this round
    bool last = true;            // then all replicas switch; else another round may be prepared
    bool next_round = false;     // it may be prepared now
    bool dropping = false;       // what is staged is on its way out: the end comes by itself, and nothing else begins
    int64_t complete_by_ms = 0;  // that complete() waits; 0: for ever
  };
  // Of one stale replica.
  struct CatchUp {
    bool running = false;
    bool stale = true;  // by the last tick
    int failures = 0;
    int64_t due_ms = 0;
    std::string note;
  };
  using Replies = std::vector<wire::AdminReply>;
  using Key = std::pair<std::string, uint32_t>;

  Status begin(DiskUpdate update, Done done);
  std::string label_locked(uint64_t version) const;
  void set_label_locked(uint64_t version, std::string label);
  PipelineCommand command_of(wire::AdminAction action, int64_t timeout_ms) const;
  void on_staged(const Replies& replies);
  void switch_all();
  void on_switched(const Replies& replies);
  void on_kept(uint64_t version, const std::string& path);
  void give_up(const Status& why);
  void end(const Status& status);
  // Of a trainer's updates (weight_updates_live.cc).
  Status check_live() const;
  void leave_failed_group(const std::string& name, const Status& why);
  bool is_at(uint64_t version, WeightsState::Phase phase) const;
  void on_ready(uint64_t version, const Replies& replies, const Done& done);
  void on_received(uint64_t version, const Replies& replies);
  void hold(uint64_t version);
  Status begin_round(const WeightPlan& plan);
  void end_round_locked();
  void end_late_completion(int64_t now_ms);
  Result<bool> begin_completion(LiveCompletion completion, Done done);
  // What begin_abort() leaves to do.
  struct BegunAbort {
    bool staged = false;  // replicas hold a part of the update: `why` ends it, and `done` is called then
    std::string why;
  };
  Result<BegunAbort> begin_abort(const std::optional<std::string>& group, const Done& done);

  bool may_begin_locked(CatchUp& one, int64_t now_ms);
  void catch_up(const StaleReplica& replica);
  void end_catch_up(const StageReplica& replica, const Replies& replies);
  void note(const StageReplica& replica, std::string text);

  const std::vector<std::string> stages_;
  const bool one_model_;
  const Env env_;
  Pauses pauses_;
  WeightSnapshots snapshots_;

  mutable std::mutex mutex_;  // guards what follows; not held while others are called
  WeightsState state_;
  Update update_;  // while state_.phase is not kIdle
  uint64_t next_version_ = 2;
  Status live_failure_;        // of a trainer's update, until complete() asks
  bool serving_live_ = false;  // a trainer sent the weights that serve, and no folder has them
  std::string serving_path_;   // of the folder that serves; empty: each replica's own
  std::map<uint64_t, std::string> labels_;
  std::map<Key, CatchUp> catch_ups_;
  int64_t now_ms_ = 0;  // of the last tick
};

}  // namespace millrace
