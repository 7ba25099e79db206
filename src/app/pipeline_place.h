// Where the parts of a pipeline find each other: endpoints of inboxes, relays, and who this process is. The same for
// the front, for its child processes and for those that join from another host.
//
// A pipeline whose stages are all here speaks ipc:// in the instance's private folder. One with stages on other hosts
// speaks tcp://, encrypted with the shared key where it leaves the machine.
//
// Thread safety: after make(), functions from any thread.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>

#include "base/status.h"
#include "control/abort_bus.h"
#include "control/shared_key.h"
#include "control/zmq_mailbox.h"
#include "pipeline/spec.h"
#include "stages/loop/relay_choice.h"

namespace millrace {

// Of a stage, for each start of its process: room for so many leases that it loses and takes again.
inline constexpr int kIncarnationBits = 20;

class PipelinePlace {
 public:
  // `run_dir`: of ipc sockets. `listen`: the address of this host that others reach, for a pipeline over several;
  // empty: that of the spec's control. kInvalidArgument: others cannot come there, or the key file, as
  // kPermissionDenied.
  static Result<PipelinePlace> make(const PipelineSpec& spec, std::string run_dir, std::string listen);

  bool over_hosts() const { return over_hosts_; }
  const SharedKey* key() const { return key_ ? &*key_ : nullptr; }
  // Where the coordinator is reached, and where it tells aborts.
  std::string coordinator() const;
  std::string aborts() const;
  // What a stage's inbox binds; the inbox says the real one.
  std::string inbox(const std::string& stage, uint32_t replica, uint64_t incarnation) const;
  // This process, but for stage, endpoint and relays.
  wire::Peer self(const std::string& stage, uint32_t replica, uint64_t incarnation) const;
  // One of each backend that a stage may need. `spec`: of the stage, or of the pipeline for the coordinator.
  Result<loop::Relays> relays(const RelaySpec& spec) const;

  // With the key. `options`: what the caller wants of the outbox, but for that.
  Result<std::shared_ptr<Outbox>> connect(ZmqContext& zmq, const std::string& endpoint,
                                          OutboxOptions options = {.policy = BeforeConnected::kKeep}) const;

 private:
  std::string run_dir_, control_, listen_;
  bool over_hosts_ = false;
  std::set<std::string> backends_;  // of relays
  std::optional<SharedKey> key_;
};

// The first incarnation of a stage that a person started, newer than that of any process that had the stage before
// without a supervisor that counts.
uint64_t incarnation_of_now();

// What the command line says of the hosts goes over what the file says. `control`: "ADDRESS:PORT", or an endpoint.
// Empty values change nothing.
void override_hosts(PipelineSpec& spec, const std::string& control, const std::string& key_file);

// What a person should start elsewhere, a line for each host, with `more` at its end; empty: nothing.
std::string join_commands(const PipelineSpec& spec, const std::string& file, const std::string& more = "");

}  // namespace millrace
