// PipelineBackend: a pipeline of any shape, running: the coordinator here, stages where the spec puts them: those of
// the process "front" as threads of this one, others of this host in supervised child processes, those of other hosts
// awaited.
//
// Owned by serve. Thread safety: start() and stop() from the main thread; the engine's functions from any.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "app/options.h"
#include "app/pipeline_host.h"
#include "app/pipeline_place.h"
#include "pipeline/coordinator_thread.h"
#include "pipeline/relay_payloads.h"
#include "pipeline/run_dir.h"
#include "pipeline/supervisor.h"
#include "stages/pipeline_engine.h"
#include "stages/profile_recorder.h"

namespace millrace {

struct PipelineBackendOptions {
  std::string file;                // given to the child processes, which read it again; empty: the one that is built in
  bool single = false;             // all stages of this host in this process
  ModelOptions model;              // of stages that take the command line's, and the log level
  int replicas = 0;                // of a text pipeline's scheduler, for the child processes; 0: as the file says
  std::string profile_folder;      // of traces; empty: the user's own
  Library library;                 // what the spec names
  CoordinatorOptions coordinator;  // but for who it is
};

class PipelineBackend : public PipelineEngine {
 public:
  using OrderDone = std::function<void(std::vector<wire::AdminReply>)>;

  static Result<std::unique_ptr<PipelineBackend>> make(PipelineSpec spec, PipelineBackendOptions options);
  ~PipelineBackend() override;

  void start();
  void drain() { coordinator_->drain(); }
  std::size_t live_requests() const { return coordinator_->books().live; }
  // Ends what is left of the requests, then the stages.
  void stop();
  // A stage's process cannot work with what it was given: its error was printed, and nothing will ever be served.
  bool failed();
  const std::string& run_dir() const { return run_dir_->path(); }  // of this instance
  // What a person should start elsewhere; empty: nothing.
  std::string awaited_hosts() const;

  ReqId submit(PipelineRequest request, Sink sink) override;
  void begin(ReqId id, Result<wire::TokenizedRequest> request, PlacementHint hint) override {
    coordinator_->begin(id, std::move(request), hint);
  }
  bool is_live(ReqId id) const override { return coordinator_->is_live(id); }
  void cancel(ReqId id) override { coordinator_->abort(id); }
  void end(ReqId id) override { coordinator_->cancel(id); }
  void admin(wire::AdminAction action, int64_t timeout_ms, OrderDone done) override;
  Health health() const override;
  std::vector<MetricSample> samples() const override;
  int64_t request_timeout_s() const override { return spec_.request_timeout_s; }
  const std::string& name() const override { return spec_.name; }
  const std::string& picture() const override { return picture_; }

 private:
  class Doors;
  PipelineBackend(PipelineSpec spec, PipelineBackendOptions options);
  Status open();
  void child_starts(const std::string& process, uint64_t incarnation);
  void child_died(const std::string& process, uint64_t incarnation, const std::string& how);
  void note_ready(const ReplicaView& lost);
  bool had_served(const std::string& process) const;
  std::vector<PipelineSeat> seats_of(const std::string& process) const;
  ChildSpec child(const std::string& process);
  Result<std::string> begin_order(wire::AdminAction action);
  void end_profile(std::vector<wire::AdminReply> replies, OrderDone done);

  const PipelineSpec spec_;
  const PipelineBackendOptions options_;
  const std::string picture_;
  ProfileRecorder profile_;
  ZmqContext zmq_;  // outlives the sockets of everything below
  std::unique_ptr<RunDir> run_dir_;
  std::unique_ptr<PipelinePlace> place_;
  std::map<std::string, std::vector<PipelineSeat>> processes_;  // of this host, the front's too
  std::map<std::string, uint64_t> incarnations_;                // of the children; the supervisor's thread
  loop::Relays relays_;                                         // the coordinator's
  std::unique_ptr<Doors> doors_;
  std::unique_ptr<RelayPayloads> payloads_;
  std::unique_ptr<CoordinatorThread> coordinator_;
  std::unique_ptr<PipelineHost> here_;
  std::unique_ptr<Supervisor> supervisor_;
  std::thread thread_;
  mutable std::mutex ready_mutex_;
  std::set<std::pair<std::string, uint32_t>> were_ready_;  // replicas that were lost after they had been ready
  std::mutex writer_mutex_;
  std::thread profile_writer_;  // one at a time, as there is one profile
  std::atomic<bool> failed_{false};
  bool stopped_ = false;
};

}  // namespace millrace
