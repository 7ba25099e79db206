// StageHost: the stages of a pipeline that one process runs, each a StageLoopStage on a thread of its own.
//
// Owner: app/instance.h, in the server, a child process, or one that joined from another host. ended() is true when a
// stage has ended by itself, after a Shutdown or a failure; the whole process then ends, and its supervisor starts it
// again.
//
// Thread safety: one thread.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "pipeline/network.h"
#include "stages/stage_loop_stage.h"

namespace millrace {

// Of a stage, for each start of its process: so many leases can be lost and taken again.
inline constexpr int kIncarnationBits = 20;

// The first incarnation of a stage without a supervisor. It is based on the time, so it exceeds the incarnations of
// earlier processes that ran the stage unsupervised.
uint64_t incarnation_of_now();

// Of --stages: "think", or "think:1" of a stage with replicas; at least one, none twice. kInvalidArgument names what is
// wrong.
Result<std::vector<StageReplica>> parse_replicas(const std::vector<std::string>& texts, const PipelineSpec& spec);

class StageHost {
 public:
  // spec, library and network must outlive it. `spec_hash`: what the stages register with.
  static Result<std::unique_ptr<StageHost>> make(const PipelineSpec& spec, uint64_t spec_hash, const Library& library,
                                                 PipelineNetwork& network, const std::vector<StageReplica>& replicas,
                                                 uint64_t incarnation, std::shared_ptr<SpanSink> spans = nullptr);
  ~StageHost();  // stop()

  void start();
  // True once a stage has ended; `status()` is then why: OK after a Shutdown. Any thread, also while other stages run
  // or end.
  bool ended() const { return ended_.load() > 0; }
  Status status() const;
  void stop();
  // Reports to the coordinator that these stages end, and asks them to; before stop().
  void leave();
  // The same for each when it is idle, or after `limit_ms`; then all_ended().
  void drain(int64_t limit_ms);
  bool all_ended() const { return ended_.load() == stages_.size(); }

 private:
  StageHost() = default;
  Status add(StageLoopConfig config, const Library& library, PipelineNetwork& network, const PipelineSpec& spec);

  std::shared_ptr<SpanSink> spans_;  // null: this process exports none
  std::vector<loop::Relays> relays_;
  std::vector<std::unique_ptr<StageLoopStage>> stages_;
  std::vector<std::thread> threads_;
  mutable std::mutex status_mutex_;
  Status status_;                      // the first error that a stage ended with
  std::atomic<std::size_t> ended_{0};  // stages
};

}  // namespace millrace
