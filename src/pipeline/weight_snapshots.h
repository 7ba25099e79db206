// WeightSnapshots: has weights that a trainer sent written as a model folder by one of the replicas that serve them, so
// that others can load them (stages/generating/weight_snapshot.h).
//
//   want() --> due --sent to a replica--> writing --written--> kept
//               ^--kSnapshotFirstMs, doubled, kSnapshotMaxMs at most--'failed; kSnapshotTries in all
//
// Each try asks the next replica. Newer weights count: what is written of older ones is given up by the replica, or of
// no use. Where no stage has a folder for snapshots, none is asked again.
//
// Owner: WeightUpdates. Thread safety: all functions from any thread, tick() from the coordinator's alone; replies come
// on the coordinator's thread. Nothing of the environment is called with this class's lock.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "pipeline/admin_commands.h"
#include "stages/weight_control.h"

namespace millrace {

inline constexpr int64_t kWriteWeightsMs = 600'000;                          // to write a snapshot
inline constexpr int64_t kSnapshotFirstMs = 1'000, kSnapshotMaxMs = 30'000;  // between two tries
inline constexpr int kSnapshotTries = 8;

class WeightSnapshots {
 public:
  struct Env {
    std::function<void(PipelineCommand, AdminCommands::Done)> command;
    // The weights of this version are in the folder.
    std::function<void(uint64_t version, const std::string& path)> kept;
  };

  // `stages`: the one that writes them, with so many replicas, or none.
  WeightSnapshots(std::vector<std::string> stages, std::size_t replicas, Env env)
      : stages_(std::move(stages)), replicas_(replicas), env_(std::move(env)) {}

  // These weights serve now, on some of the replicas. `label`: written with them.
  void want(uint64_t version, std::string label);
  // Others serve now, which need no snapshot.
  void drop() { want(0, ""); }
  // There is one from before the start.
  void start_from(uint64_t version, std::string path);
  void tick(int64_t now_ms);
  // Whether a snapshot of this version may still come.
  bool may_come(uint64_t version) const;
  WeightsSnapshot state() const;

 private:
  void on_reply(uint64_t version, const std::vector<wire::AdminReply>& replies);
  void fail_locked(const Status& why);

  const std::vector<std::string> stages_;
  const std::size_t replicas_;
  const Env env_;

  mutable std::mutex mutex_;  // guards what follows
  bool unsupported_ = false;
  uint64_t wanted_ = 0;  // 0: nothing
  std::string label_;    // of wanted_
  uint64_t asked_ = 0;   // the version that a replica writes now
  int failures_ = 0;
  int64_t due_ms_ = 0;
  int64_t now_ms_ = 0;  // of the last tick
  WeightsSnapshot state_;
};

}  // namespace millrace
