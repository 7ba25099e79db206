// WeightStager: makes new weights beside the serving ones, on a thread of its own while the engine goes on.
//
//   begin() -> loading --made--> staged in the runner --Scheduler::switch_weights()--> serving
//                 '--failed, dropped or superseded meanwhile--> nothing
//
// One set of weights is made at a time. A load cannot be stopped in the middle: what is dropped while it is being made
// is thrown away when it is done, and a begin() meanwhile waits for that; of several, the last one counts. The thread
// runs at nice 19, so that steps of the engine do not wait for it.
//
// Owner: the worker `generate`. Thread safety: the worker's thread. The destructor waits for a load under way.
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
#include "runner/runner.h"

namespace millrace {

// The weights of the model folder `path` (empty: the model's own), as `version` and in the form of the serving ones. On
// any thread.
using MakeWeights = std::function<Result<std::shared_ptr<const Model>>(const std::string& path, uint64_t version)>;
// The same, of what it holds itself.
using MakeModel = std::function<Result<std::shared_ptr<const Model>>()>;

class WeightStager {
 public:
  struct Wanted {
    uint64_t command = 0;  // which the result is for
    std::string path;
    uint64_t version = 0;
    uint64_t checksum = 0;  // that the weights must have; 0: any
    MakeModel make;         // instead of the folder `path`
  };
  struct Made {
    uint64_t command = 0;
    uint64_t version = 0;
    uint64_t checksum = 0;  // of the weights
    Status status;
    std::shared_ptr<const Model> model;  // that is staged now
  };

  // `runner` outlives it.
  WeightStager(MakeWeights make, Runner& runner) : make_(std::move(make)), runner_(runner) {}
  ~WeightStager();

  // What is being made for an earlier command is superseded.
  void begin(Wanted wanted);
  // Nothing of this version is staged from now on; 0: of any version. What is staged as version `kept` stays.
  void drop(uint64_t version, uint64_t kept = 0);

  // What has been made since: it is staged, or why it is not; each command once. Called after every step.
  std::vector<Made> take_made();

  bool busy() const { return thread_.joinable() || !ended_.empty(); }

 private:
  using Weights = Result<std::shared_ptr<const Model>>;

  void start(Wanted wanted);
  Made finish();
  void give_up(const Wanted& wanted, const Status& why);

  const MakeWeights make_;
  Runner& runner_;
  std::thread thread_;  // joinable: weights are being made, or were and not taken
  Wanted current_;      // that the thread makes
  Status dropped_;      // not OK: why what is being made is thrown away
  std::optional<Wanted> next_;
  std::vector<Made> ended_;      // commands that ended without weights
  std::optional<Weights> made_;  // the thread's, until done_
  std::atomic<bool> done_{false};
};

}  // namespace millrace
