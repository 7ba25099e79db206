#include "pipeline/stage_processes.h"

#include <fmt/format.h>

#include <algorithm>

namespace millrace {

ReplicasOfProcesses replicas_of_processes(const PipelineSpec& spec, bool single) {
  ReplicasOfProcesses out;
  for (const StageSpec& stage : spec.stages) {
    if (!stage.host.empty()) continue;
    for (int i = 0; i < stage.replicas; ++i) {
      // A process for each replica: they share nothing, and the death of one must not take the others with it.
      std::string process = single ? std::string(kServerProcess) : stage.process;
      if (stage.replicas > 1 && process != kServerProcess) process += fmt::format("-{}", i);
      out[process].push_back({stage.name, static_cast<uint32_t>(i)});
    }
  }
  return out;
}

StageProcesses::StageProcesses(const PipelineSpec& spec, ReplicasOfProcesses children, Arguments arguments,
                               CoordinatorThread& coordinator)
    : coordinator_(coordinator),
      children_(std::move(children)),
      supervisor_(child_specs(spec, arguments),
                  {.starting = [this](const std::string& process, uint64_t number) { on_start(process, number); },
                   .died = [this](const std::string& process, const std::string& how) { on_death(process, how); },
                   .gave_up = [this](const std::string&) { failed_.store(true); },
                   .had_served = [this](const std::string& process) { return had_served(process); }}) {}

std::vector<ChildSpec> StageProcesses::child_specs(const PipelineSpec& spec, const Arguments& arguments) const {
  std::vector<ChildSpec> out;
  for (const auto& [process, replicas] : children_) {
    std::vector<std::string> stages;
    for (const StageReplica& replica : replicas) stages.push_back(replica.stage);
    out.push_back({.name = process,
                   // References into children_, which is const and declared before the supervisor, so it outlives these
                   // closures.
                   .arguments = [arguments, &one = process,
                                 &its = replicas](uint64_t incarnation) { return arguments(one, its, incarnation); },
                   .env = spec.env_of(stages),
                   .env_defaults = spec.env_defaults});
  }
  return out;
}

void StageProcesses::on_start(const std::string& process, uint64_t number) {
  // The low bits are the process's own: it counts there when it loses its lease and registers anew.
  const uint64_t incarnation = incarnations_[process] = number << kIncarnationBits;
  for (const StageReplica& replica : children_.at(process)) {
    // Before the process exists: an old one of the same name that still runs cannot register in between.
    coordinator_.expect(replica.stage, replica.replica, incarnation);
  }
}

// It may have lost its lease and taken another since it was started: what counts is the start that a number belongs to.
void StageProcesses::on_death(const std::string& process, const std::string& how) {
  const uint64_t start = incarnations_[process] >> kIncarnationBits;
  const Health health = coordinator_.health();
  for (const StageReplica& replica : children_.at(process)) {
    for (const wire::StageStatus& status : health.stages) {
      const bool same = status.stage == replica.stage && status.replica == replica.replica;
      if (same && status.incarnation >> kIncarnationBits == start) {
        coordinator_.down(replica.stage, replica.replica, status.incarnation, how);
      }
    }
  }
}

// One that died is started again anyway; one that hangs is killed for it. One that has reported a failure is about to
// end by itself, with an exit code that shows whether another start may help.
void StageProcesses::on_lost(const ReplicaView& lost) {
  // First, as a process that hangs was ready in most cases: after its death had_served() must know.
  note_ready(lost);
  if (lost.status.state == wire::StageState::kFailed) return;
  for (const auto& [process, replicas] : children_) {
    const bool here = std::any_of(replicas.begin(), replicas.end(), [&lost](const StageReplica& replica) {
      return replica.stage == lost.stage && replica.replica == lost.replica;
    });
    // By the start's number, so that a report that comes late does not kill the process that was started since.
    if (here) supervisor_.kill_hung(process, lost.peer.incarnation >> kIncarnationBits);
  }
}

void StageProcesses::note_ready(const ReplicaView& lost) {
  const wire::StageState last = lost.status.state;
  // A stalled one was ready before: only a stage that has served stands still.
  if (last != wire::StageState::kReady && last != wire::StageState::kStalled) return;
  std::lock_guard lock(mutex_);
  were_ready_.emplace(lost.stage, lost.replica);
}

bool StageProcesses::had_served(const std::string& process) const {
  const std::vector<StageReplica>& replicas = children_.at(process);
  std::lock_guard lock(mutex_);
  // All replicas of the process: one that never came up with its input does not become good by a restart.
  return std::all_of(replicas.begin(), replicas.end(), [this](const StageReplica& replica) {
    return were_ready_.contains({replica.stage, replica.replica});
  });
}

}  // namespace millrace
