// PrefillProcesses: the replicas that compute prompts for the schedulers of this host (--prefill), as child processes
// of this one. Each has an inbox in a private folder of sockets, as each scheduler has; one that dies is started again,
// and meanwhile the schedulers compute their prompts themselves.
//
// Owner: `serve`. Threads: the owner's.
#pragma once

#include <memory>
#include <string>

#include "pipeline/run_dir.h"
#include "pipeline/supervisor.h"
#include "stages/generating/model_options.h"

namespace millrace {

class PrefillProcesses {
 public:
  // Makes the folder of sockets. kUnavailable or kResourceExhausted where it cannot be had.
  static Result<std::unique_ptr<PrefillProcesses>> make();
  ~PrefillProcesses();  // they end

  const std::string& run_dir() const { return run_dir_.path(); }
  // `count` replicas beside so many schedulers, with which they share what `options` have.
  void start(const ModelOptions& options, int count, int schedulers);

 private:
  explicit PrefillProcesses(RunDir run_dir) : run_dir_(std::move(run_dir)) {}

  RunDir run_dir_;
  std::unique_ptr<Supervisor> supervisor_;
};

}  // namespace millrace
