// Coordinator: accepts the requests of a pipeline, sends each to its entry stage, and reports to its sink what the
// terminals send. Each part has its state and its rules in a header of its own:
//
//   live_requests.h   live requests, deadlines; "one request, one end"
//   placement.h       which replicas a request gets, and whether it can begin
//   delivery.h        chunks and results: fetched, ordered, given to sinks, acknowledged
//   aborts.h          requests that ended early, until their stages have acknowledged it
//   lost_requests.h   requests on which no stage works any more
//   membership.h      which replicas are members; stage_outboxes.h: how they are reached
//   admin_commands.h  the operator's commands
//
// A lost replica ends the requests that still depend on it: something may yet come from it to a terminal that is not
// done (stages/stage_graph.h). A request begins while a stage is missing that it may turn out not to need. It is not
// sent before all senders know of the losses before it.
//
// The coordinator waits for nothing and looks at no clock: handle() and tick() are given the time.
//
// Owner: the component that composes the pipeline (coordinator_thread.h makes a thread of it). Thread safety: none,
// except that the data plane may answer on any thread. Sinks are called from inside the functions that take the time,
// and must not call back.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "pipeline/aborts.h"
#include "pipeline/admin_commands.h"
#include "pipeline/coordinator_env.h"
#include "pipeline/delivery.h"
#include "pipeline/live_requests.h"
#include "pipeline/lost_requests.h"
#include "pipeline/membership.h"
#include "pipeline/placement.h"
#include "pipeline/request_events.h"
#include "pipeline/spec.h"
#include "pipeline/stage_outboxes.h"
#include "stages/engine.h"
#include "stages/stage_graph.h"

namespace millrace {

inline constexpr int kCoordinatorTickMs = 20;

struct CoordinatorOptions {
  uint64_t session = 1;  // another one after each start
  wire::Peer self;       // how stages reach it with tensors; its `stage` names it in the table of peers. Empty: unknown
  uint64_t spec_hash = 0;    // as MembershipOptions; 0: of the spec
  std::string prompt_stage;  // where prompts go that are tokenized already; empty: to the entry stage
  std::function<Status(uint64_t theirs, uint64_t ours)> same_spec;  // as MembershipOptions
  int64_t lease_ms = kLeaseMs;
  int64_t stall_grace_ms = kStallGraceMs;
  int max_requests = 0;  // 0: the spec's
  DeliveryLimits client_limits;
};

class Coordinator {
 public:
  struct Opened {
    ReqId id;
    bool refused = false;
    std::optional<wire::Peer> inputs_to;  // none: it waits for no inputs, or for a prompt
  };

  // All must outlive it.
  Coordinator(const PipelineSpec& spec, const Library& library, CoordinatorOptions options, CoordinatorEnv& env,
              Payloads& payloads, int64_t now_ms);

  // Admits a request and chooses its replicas, unless its prompt follows. The sink gets a refusal before this
  // returns: kUnavailable while it drains or where a stage is missing without which this request cannot be completed,
  // kResourceExhausted over a limit, kInvalidArgument for the terminals.
  Opened open(const Value& inputs, SubmitOptions options, RequestSink sink, int64_t now_ms);
  // What Payloads::give() answered for the inputs of a request that waits for them: it is sent, or fails. Every such
  // request gets this call; where it has ended meanwhile, what was given is cancelled.
  void start(ReqId id, Result<wire::Payload> inputs, int64_t now_ms);
  // The prompt of a request that was submitted without inputs; it is placed now, by the hint. Ignored where the request
  // has ended.
  void set_prompt(ReqId id, wire::TokenizedRequest request, const PlacementHint& hint, int64_t now_ms);
  bool is_live(ReqId id) const { return requests_.find(id) != nullptr; }
  // These end it: with this status, with kCancelled, or without an event for its sink. Unknown and ended ids are
  // ignored.
  void fail(ReqId id, const Status& status, int64_t now_ms);
  void cancel(ReqId id, int64_t now_ms);
  void abort(ReqId id, int64_t now_ms);
  // Its sink can take more.
  void client_ready(ReqId id, int64_t now_ms);

  void handle(wire::Message message, int64_t now_ms);
  // Everything that is due; what the data plane has brought. Every kCoordinatorTickMs, or sooner.
  void tick(int64_t now_ms);
  // Called, on any thread, when the data plane has brought something: it is time for a tick().
  void on_arrival(std::function<void()> wake) { delivery_.on_arrival(std::move(wake)); }

  void admin(PipelineCommand command, AdminCommands::Done done, int64_t now_ms);
  // As in Membership.
  void require_weights(const std::vector<std::string>& stages, RequiredWeights weights) {
    members_.require_weights(stages, weights);
  }
  void accept_weights(const std::vector<std::string>& stages, RequiredWeights next) {
    members_.accept_weights(stages, next);
  }
  void note_weights(const StageReplica& replica, std::string note) {
    members_.note_weights(replica.stage, replica.replica, std::move(note));
  }
  // True: requests that have not begun wait, until false.
  void hold(bool held) { holding_ = held; }
  std::size_t running() const { return requests_.running(); }
  // Accepts nothing new; what runs goes on.
  void drain() { draining_ = true; }
  // Ends every request and admin command.
  void fail_all(const Status& status, int64_t now_ms);
  // Sends Shutdown to every member; without `joined`, those of other hosts stay for the coordinator that leads next.
  void shut_down(int64_t grace_ms, bool joined);

  // The supervisor reports that it starts a process, or that one died.
  void expect(const std::string& stage, uint32_t replica, uint64_t incarnation);
  void down(const std::string& stage, uint32_t replica, uint64_t incarnation, const std::string& reason,
            int64_t now_ms);

  Health health() const;
  CoordinatorBooks books() const;
  const Membership& members() const { return members_; }
  // The replicas of a live request, for tests; empty: it is not live.
  std::vector<wire::RouteHop> route_of(ReqId id) const;

 private:
  // coordinator.cc
  Result<StageSet> terminals_of(const Value& inputs, const SubmitOptions& options) const;
  Status check_submit(StageSet terminals) const;
  Result<std::unique_ptr<LiveRequest>> admit(const Value& inputs, const SubmitOptions& options, int64_t now_ms) const;
  void choose_route(LiveRequest& request, std::optional<wire::TokenizedRequest> generate, const PlacementHint& hint);
  const wire::Peer& entry_of(const LiveRequest& request) const;
  void try_start(ReqId id, int64_t now_ms);
  void end(ReqId id, RequestEvent::End how, bool report, int64_t now_ms);
  void end_delivered(int64_t now_ms);
  void take_arrivals(int64_t now_ms);

  // coordinator_members.cc
  ClientWindow::Send ack_sender();
  void take_membership(int64_t now_ms);
  void on_lost(const MembershipEvent& event, int64_t now_ms);
  std::vector<std::size_t> connected(const Placement::Route& route) const;
  std::string why_not_ready() const;

  const PipelineSpec& spec_;
  const Library& library_;
  const CoordinatorOptions options_;
  CoordinatorEnv& env_;
  Payloads& payloads_;
  const StageGraph graph_;
  Membership members_;
  StageOutboxes outboxes_;
  Placement placement_;
  LiveRequests requests_;
  Aborts aborts_;
  LostRequests lost_requests_;
  Delivery delivery_;
  AdminCommands commands_;
  bool draining_ = false;
  bool holding_ = false;
  bool was_ready_ = false;  // every stage has served
  uint64_t unknown_ = 0;    // messages that are not for a coordinator
};

}  // namespace millrace
