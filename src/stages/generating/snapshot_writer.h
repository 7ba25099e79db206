// SnapshotWriter: writes snapshots of the weights that serve (weight_snapshot.h) on a thread of its own, at nice 19,
// while the engine goes on. One at a time: a new one supersedes the one that is being written, whose weights serve no
// more and need not be held.
//
// Owner: WeightCommands. Thread safety: the worker's thread. The destructor ends a snapshot that is being written.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "models/model.h"

namespace millrace {

// The path of the snapshot; soon kCancelled after `stop` is true. `label`: of the weights. On any thread.
using WriteSnapshot =
    std::function<Result<std::string>(const Model& model, const std::string& label, const std::atomic<bool>& stop)>;

class SnapshotWriter {
 public:
  struct Written {
    uint64_t command = 0;
    Result<std::string> path;
  };

  // `write` empty: there are no snapshots.
  explicit SnapshotWriter(WriteSnapshot write) : write_(std::move(write)) {}
  ~SnapshotWriter();

  bool can_write() const { return write_ != nullptr; }
  void begin(uint64_t command, std::shared_ptr<const Model> model, std::string label);
  // What has ended since: each command once. Called after every step.
  std::vector<Written> take_written();
  bool busy() const { return thread_.joinable() || !ended_.empty(); }

 private:
  struct Wanted {
    uint64_t command = 0;
    std::shared_ptr<const Model> model;
    std::string label;
  };
  void start(Wanted wanted);

  const WriteSnapshot write_;
  std::thread thread_;  // joinable: a snapshot is being written, or was and is not taken
  uint64_t command_ = 0;
  std::optional<Wanted> next_;
  std::vector<Written> ended_;
  std::optional<Result<std::string>> path_;  // the thread's, until done_
  std::atomic<bool> stop_{false};
  std::atomic<bool> done_{false};
};

}  // namespace millrace
