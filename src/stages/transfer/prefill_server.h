// PrefillServer: a server that computes prompts for others and generates nothing: a scheduler over its runner, whose
// requests are the wants of other servers.
//
// Owner: the process of a prefill replica. Threads: run() on one; stop() from any.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "stages/generating/generating_engine.h"
#include "stages/transfer/transfer_service.h"

namespace millrace::transfer {

class PrefillServer {
 public:
  PrefillServer(SchedulerOptions options, std::unique_ptr<Runner> runner, TransferLinks links, wire::KvFormat format);

  void run();  // until stop()
  void stop();

 private:
  void begin(uint64_t job, const std::vector<int32_t>& tokens, const std::string& extra_key);
  void report_ends();

  GeneratingEngine engine_;
  const std::shared_ptr<Waker> waker_;
  Scheduler::Deltas out_;
  TransferService service_;
  std::atomic<bool> stopping_{false};
};

}  // namespace millrace::transfer
