// Instance: one process of a pipeline, composed: its network, the stages that run here as threads and, in the process
// that leads, the coordinator with its engine for the api and the child processes.
//
// Owner: the command that serves. Thread safety: make, start(), leave() and stop() on the main thread; the rest from
// any.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "app/options.h"
#include "pipeline/coordinator_engine.h"
#include "pipeline/network.h"
#include "pipeline/relay_payloads.h"
#include "pipeline/run_dir.h"
#include "pipeline/stage_host.h"
#include "pipeline/stage_processes.h"

namespace millrace {

struct LeadOptions {
  bool single = false;                // all stages of this host in this process
  StageOptions child;                 // of every child process; the rest is filled in
  std::string profile_folder;         // of traces; empty: the user's own
  CoordinatorOptions coordinator;     // but for its identity
  std::optional<StartWeights> start;  // nullopt: the model's own
  bool keeps_joined = false;          // stages of other hosts stay for the server that leads next
  std::shared_ptr<SpanSink> spans;    // of stages of this process; null: none are exported
};

struct JoinOptions {
  std::string run_dir;  // of the process that leads on this host
  std::string listen;   // this host's address, as others reach it
  std::vector<StageReplica> replicas;
  uint64_t incarnation = 0;
  uint64_t spec_hash = 0;
  std::shared_ptr<SpanSink> spans;  // null: none are exported
};

class Instance {
 public:
  // The process that leads: it runs what the spec puts into it, starts the children of this host and awaits those of
  // other hosts.
  static Result<std::unique_ptr<Instance>> lead(PipelineSpec spec, Library library, LeadOptions options);
  // One that runs stages for another that leads.
  static Result<std::unique_ptr<Instance>> join(PipelineSpec spec, Library library, JoinOptions options);
  ~Instance();  // stop()

  void start();
  // A stage of this process has ended by itself; status() is the reason: OK where it was asked to.
  bool ended() const { return host_ && host_->ended(); }
  Status status() const { return ended() ? host_->status() : ok_status(); }
  // Reports to the coordinator that these stages end; before stop().
  void leave() { host_->leave(); }
  // The same when they are idle, or after `limit_ms`. Then drained().
  void drain_stages(int64_t limit_ms) { host_->drain(limit_ms); }
  bool drained() const { return host_->all_ended(); }
  // The one that leads is at "tcp://10.0.0.1:30100" from now on. Any thread.
  void move_coordinator(const std::string& control);
  // Ends what is left of the requests, then the stages.
  void stop();

  // Of the one that leads:
  // Nothing will ever be served: see status(), or a child cannot work with what it was given and has printed why.
  bool failed() const;
  PipelineEngine& engine() { return *lead_->engine; }
  void drain() { lead_->coordinator->drain(); }
  std::size_t live_requests() const { return lead_->coordinator->books().live; }
  // "": there are no child processes, and no folder.
  std::string run_dir() const { return lead_->run_dir ? lead_->run_dir->path() : ""; }

 private:
  class Env;
  struct Lead {
    bool keeps_joined = false;
    std::optional<RunDir> run_dir;
    loop::Relays relays;  // the coordinator's
    std::unique_ptr<CoordinatorEnv> env;
    std::unique_ptr<RelayPayloads> payloads;
    std::unique_ptr<CoordinatorThread> coordinator;
    std::unique_ptr<CoordinatorEngine> engine;
    std::unique_ptr<StageProcesses> processes;  // null: there are no children
    std::thread thread;
  };
  Instance(PipelineSpec spec, Library library);
  Status add_coordinator(CoordinatorOptions options);
  StageProcesses::Arguments child_arguments(const StageOptions& all) const;

  const PipelineSpec spec_;
  const Library library_;
  std::unique_ptr<PipelineNetwork> network_;  // outlives everything below
  std::unique_ptr<Lead> lead_;                // null: it runs stages for another one
  std::unique_ptr<StageHost> host_;           // null: no stage runs here
  bool stopped_ = false;
};

}  // namespace millrace
