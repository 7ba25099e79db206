// PipelineNetwork: how the processes of a pipeline reach each other: inboxes, outboxes, relays, and the name
// of this process. The same for the server, for its child processes and for those that join from another host.
//
// A pipeline whose stages are all threads of this process speaks inproc://: messages move and nothing is encoded. One
// with child processes speaks ipc:// in the instance's private folder. One with stages on other hosts speaks tcp://,
// encrypted with the shared key where it leaves the machine.
//
// Owner: app/instance.h; it outlives all that it has opened. Thread safety: after make(), functions from any thread.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>

#include "base/status.h"
#include "control/endpoint.h"
#include "control/shared_key.h"
#include "control/zmq_mailbox.h"
#include "pipeline/coordinator_links.h"
#include "pipeline/spec.h"
#include "stages/loop/relay_choice.h"

namespace millrace {

inline constexpr int kMaxQueuedSteps = 128;  // for one range: more than a chain of kMaxRanges has in flight

class PipelineNetwork {
 public:
  // `run_dir`: of ipc sockets. `listen`: the address of this host that others reach, for a pipeline over several;
  // empty: that of the spec's control. `one_process`: this host has no child process. kInvalidArgument: others cannot
  // come there, or the key file, as kPermissionDenied.
  static Result<std::unique_ptr<PipelineNetwork>> make(const PipelineSpec& spec, std::string run_dir,
                                                       std::string listen, bool one_process = false);

  // The coordinator's side.
  Result<std::unique_ptr<Inbox>> bind_coordinator();
  // A stage's side; the endpoint is the inbox's.
  Result<std::unique_ptr<Inbox>> bind_stage(const std::string& stage, uint32_t replica, uint64_t incarnation);
  // The same beside it, for rows of a layer split or for KV pages, which go from stage to stage without a loop.
  Result<std::unique_ptr<Inbox>> bind_direct(const std::string& stage, uint32_t replica, uint64_t incarnation);
  Result<std::shared_ptr<Outbox>> connect_coordinator();
  // Over hosts: the coordinator is at "tcp://10.0.0.1:30100" from now on, and what connect_coordinator() has opened
  // leads there. kInvalidArgument for what can be none.
  Status move_coordinator(const std::string& control);
  // An outbox to the inbox that has this endpoint.
  Result<std::shared_ptr<Outbox>> connect(const std::string& endpoint);
  // The same to one of bind_direct(): what it cannot take now is refused, so that nothing old waits for it.
  Result<std::shared_ptr<Outbox>> connect_direct(const std::string& endpoint, int queue_limit);

  // This process, but for endpoint and relays.
  wire::Peer self(const std::string& stage, uint32_t replica, uint64_t incarnation) const;
  // One of each backend that a stage may need. `spec`: of the stage.
  Result<loop::Relays> relays(const RelaySpec& spec) const { return make_relays(backends_, spec); }
  // Those of the edges that begin or end in the coordinator. `spec`: of the pipeline.
  Result<loop::Relays> coordinator_relays(const RelaySpec& spec) const {
    return make_relays(coordinator_backends_, spec);
  }

 private:
  PipelineNetwork() = default;
  Status check_far(const Endpoint& control, const std::string& listen) const;
  Result<loop::Relays> make_relays(const std::set<std::string>& backends, const RelaySpec& spec) const;
  const SharedKey* key() const { return key_ ? &*key_ : nullptr; }
  std::string inbox_endpoint(const std::string& name) const;
  std::string coordinator_endpoint() const;

  ZmqContext zmq_;
  std::string run_dir_, control_, listen_;
  bool over_hosts_ = false, one_process_ = false;
  std::set<std::string> backends_, coordinator_backends_;  // of relays
  std::optional<SharedKey> key_;
  std::optional<CoordinatorLinks> links_;  // over hosts
};

// What the command line has for the hosts replaces what the file has. `control`: "ADDRESS:PORT", or an endpoint.
// Empty values change nothing.
void override_hosts(PipelineSpec& spec, const std::string& control, const std::string& key_file);

// What a person should start elsewhere, a line for each host, with `more` at its end; empty: nothing. `address`: what
// is joined where that is not the spec's control.
std::string join_commands(const PipelineSpec& spec, const std::string& address, const std::string& file,
                          const std::string& more = "");

}  // namespace millrace
