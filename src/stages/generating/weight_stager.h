// WeightStager: makes new weights beside the serving ones, on a thread of its own while the engine goes on.
//
//   begin() -> loading --made--> staged in the runner --Scheduler::switch_weights()--> serving
//                 '--failed, or dropped meanwhile--> nothing
//
// One set of weights is made at a time. What was dropped while it was being made is thrown away when it is done: a load
// cannot be stopped in the middle. The thread runs at nice 19, so that steps of the engine do not wait for it.
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

#include "models/model.h"
#include "runner/runner.h"

namespace millrace {

// The weights of the model folder `path`, as `version` and in the form of the serving ones. On any thread.
using MakeWeights = std::function<Result<std::shared_ptr<const Model>>(const std::string& path, uint64_t version)>;

class WeightStager {
 public:
  // `runner` outlives it.
  WeightStager(MakeWeights make, Runner& runner) : make_(std::move(make)), runner_(runner) {}
  ~WeightStager();

  // kConflict while weights are being made.
  Status begin(uint64_t command, std::string path, uint64_t version);
  // Nothing is staged from now on.
  void drop();

  struct Made {
    uint64_t command = 0;
    Status status;
  };
  // What has been made since: it is staged, or why it is not. Called after every step.
  std::optional<Made> take_made();

  bool busy() const { return thread_.joinable(); }

 private:
  using Weights = Result<std::shared_ptr<const Model>>;

  const MakeWeights make_;
  Runner& runner_;
  std::thread thread_;  // joinable: weights are being made, or were and not taken
  uint64_t command_ = 0;
  uint64_t version_ = 0;
  bool dropped_ = false;
  std::optional<Weights> made_;  // the thread's, until done_
  std::atomic<bool> done_{false};
};

}  // namespace millrace
