// RangeProcesses: the ranges of a layer split behind the first one, as child processes of this one (--pp). Each has an
// inbox in a private folder of sockets; a range that dies is started again, and the first range is notified.
//
// Owner: the ChainRunner, as its RangePeers. Threads: open() and the destructor on the owner's; `lost` is called on the
// supervisor's thread.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "control/zmq_context.h"
#include "pipeline/run_dir.h"
#include "pipeline/supervisor.h"
#include "runner/chain_links.h"
#include "stages/generating/load_runner.h"

namespace millrace {

// The inbox of range `index` of a chain in this folder of sockets, and the way to the range behind it.
Result<ChainLinks> range_links(const std::string& run_dir, uint32_t index, uint32_t ranges);
// The way to the first range's inbox.
Result<std::shared_ptr<Outbox>> first_range_outbox(const std::string& run_dir);

class RangeProcesses final : public RangePeers {
 public:
  // Starts them. kUnavailable or kResourceExhausted where the sockets cannot be had.
  static Result<ChainLinks> open(const ModelOptions& options, uint32_t ranges);
  ~RangeProcesses() override;  // they end

  void on_lost(Lost lost) override;
  void restart(uint32_t range) override;
  bool send_alive() const override { return true; }

 private:
  struct Death {
    uint32_t range = 0;
    std::string how;
    bool final = false;
  };
  RangeProcesses(RunDir run_dir, const ModelOptions& options, uint32_t ranges);
  void report(Death death);

  RunDir run_dir_;
  std::mutex mutex_;
  Lost lost_;                                     // guarded by mutex_, like the next two
  std::deque<Death> unheard_;                     // before on_lost()
  std::map<std::string, uint64_t> incarnations_;  // of the processes that run, by name
  std::unique_ptr<Supervisor> supervisor_;
};

}  // namespace millrace
