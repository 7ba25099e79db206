// StageProcesses: the child processes of this host, each with the replicas of stages that the pipeline's file puts
// there. A Supervisor starts them, and again when they die; the coordinator gets which incarnation to expect and which
// has died.
//
// Owner: app/instance.h. Thread safety: start() and stop() from one thread; on_lost() and failed() from any. The
// coordinator must outlive it.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "pipeline/coordinator_thread.h"
#include "pipeline/stage_host.h"
#include "pipeline/supervisor.h"

namespace millrace {

// By name of the process.
using ReplicasOfProcesses = std::map<std::string, std::vector<StageReplica>>;

// Where the stages of this host run: each replica of a stage with several in a process of its own, "name-0", but for
// those of the server (kServerProcess). `single`: all in the server.
ReplicasOfProcesses replicas_of_processes(const PipelineSpec& spec, bool single);

class StageProcesses {
 public:
  // The arguments after the program's name with which a process is started.
  using Arguments = std::function<std::vector<std::string>(
      const std::string& process, const std::vector<StageReplica>& replicas, uint64_t incarnation)>;

  StageProcesses(const PipelineSpec& spec, ReplicasOfProcesses children, Arguments arguments,
                 CoordinatorThread& coordinator);

  void start() { supervisor_.start(); }
  void stop() { supervisor_.stop(kChildGraceMs); }
  // The coordinator has lost it.
  void on_lost(const ReplicaView& replica);
  // A process cannot work with what it was given: it has printed its error, and nothing will ever be served.
  bool failed() const { return failed_.load(); }

 private:
  std::vector<ChildSpec> child_specs(const PipelineSpec& spec, const Arguments& arguments) const;
  void on_start(const std::string& process, uint64_t number);
  void on_death(const std::string& process, const std::string& how);
  void note_ready(const ReplicaView& lost);
  bool had_served(const std::string& process) const;

  CoordinatorThread& coordinator_;
  const ReplicasOfProcesses children_;
  std::map<std::string, uint64_t> incarnations_;  // the supervisor's thread
  mutable std::mutex mutex_;
  std::set<std::pair<std::string, uint32_t>> were_ready_;  // replicas that were lost after they had been ready
  std::atomic<bool> failed_{false};
  Supervisor supervisor_;  // last: its thread uses the rest
};

}  // namespace millrace
