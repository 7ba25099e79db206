// Coordinator: the front of a pipeline. It knows every live request, submits it to the entry stage, and hands what the
// terminals say to the request's sink. It is where "one request, one end" is kept against the world: a stage that dies
// or fails ends its requests here, a deadline ends them here, and chunks of an ended request are ignored.
//
// States: pending (the entry stage cannot take it yet, or a stage has not heard of another's loss yet) -> running ->
// completed | failed | aborted. Ended ones are forgotten; what stays for a while is an open abort, until every stage
// that may hold the request has acknowledged it or is lost. The hint bus only makes aborts faster: the acknowledgement
// is the truth.
//
// The coordinator chooses the replicas of a request once, when it takes it (pipeline/placement.h), and the choice
// travels with the request. A lost replica costs the requests that still depend on it:
// something may yet come from there to a terminal that is not done; stages report whose inputs are complete
// (stages/stage_graph.h). A new request begins while a stage is away which it may turn out not to need.
//
// Terminals' results and chunks may come through relays. They are fetched aside, and the sink gets them in the order
// of each terminal. A sink that cannot take more says so. The stages hear how much it has taken and keep a window (at
// most wire::kMaxUnackedChunks chunks and kMaxUnackedClientBytes are on their way), so that a slow client slows its own
// request down and nothing grows. What waits here is bounded all the same, and over the bound its request, and no
// other, fails with kResourceExhausted.
//
// Ids begin somewhere else in each session: a stage that outlived the last coordinator still remembers the ids of that
// one, and an abort of then may still be on its way.
//
// The core waits for nothing and looks at no clock: handle() and tick() are given the time. coordinator.cc holds the
// requests' part, coordinator_admission.cc who may begin, coordinator_news.cc what terminals say, coordinator_acks.cc
// what they hear of it, coordinator_stages.cc members, aborts and health.
//
// Owner: whoever composes the pipeline (coordinator_thread.h makes a thread of it). Thread safety: none, except that
// the data plane may answer on any thread. Sinks are called from inside the functions that take the time, and must not
// call back.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "control/mailbox.h"
#include "payload/value.h"
#include "pipeline/admin.h"
#include "pipeline/coordinator_doors.h"
#include "pipeline/coordinator_request.h"
#include "pipeline/membership.h"
#include "pipeline/placement.h"
#include "pipeline/spec.h"
#include "stages/stage_graph.h"

namespace millrace {

inline constexpr int kCoordinatorTickMs = 20;
inline constexpr int64_t kAbortRetryMs = 500;
inline constexpr int kMaxAbortTries = 240;               // then the stage is at fault, and said to be in the log
inline constexpr int64_t kFetchTimeoutMs = 10'000;       // of one payload of a terminal; or less, by the deadline
inline constexpr int64_t kClientAckMs = 100;             // what the sink took is acknowledged after this time
inline constexpr int64_t kAckRepeatMs = 500;             // and again after this, doubled each time: it may be lost
inline constexpr std::size_t kMaxStrangers = 16;         // doors kept to those whose registration was refused
inline constexpr std::size_t kOpenAbortsPerRequest = 4;  // open aborts at most: so many for each live request allowed

struct CoordinatorOptions {
  uint64_t session = 1;  // another one after each start
  wire::Peer self;       // how stages reach it with tensors; its `stage` names it in the table of peers. Empty: unknown
  uint64_t spec_hash = 0;    // as MembershipOptions; 0: of the spec
  std::string prompt_stage;  // where prompts go that are tokenized already; empty: to the entry stage
  std::function<Status(uint64_t theirs, uint64_t ours)> same_spec;  // as MembershipOptions
  int64_t lease_ms = kLeaseMs;
  int64_t stall_grace_ms = kStallGraceMs;
  int max_requests = 0;                      // 0: the spec's
  std::size_t max_client_chunks = 1024;      // of one request, that wait for its sink
  std::size_t max_client_bytes = 64u << 20;  // of those
};

class Coordinator {
 public:
  // All must outlive it.
  Coordinator(const PipelineSpec& spec, const Library& library, CoordinatorOptions options, CoordinatorDoors& doors,
              Payloads& payloads, int64_t now_ms);
  ~Coordinator();

  // The sink hears of a refusal before this returns: kUnavailable where a stage is missing without which this request
  // cannot be completed, or it drains,
  // kResourceExhausted over a limit, kInvalidArgument for the terminals.
  ReqId submit(Value inputs, SubmitOptions options, PipelineSink sink, int64_t now_ms);
  // The prompt of a request that was submitted without inputs; it is placed now, by what the hint says. Ignored where
  // the request has ended meanwhile.
  void begin(ReqId id, wire::TokenizedRequest request, const PlacementHint& hint, int64_t now_ms);
  bool is_live(ReqId id) const { return table_.contains(id); }
  // Ends it with this status. Unknown and ended ids are ignored.
  void fail(ReqId id, const Status& status, int64_t now_ms);
  // Ends it with kCancelled. Unknown and ended ids are ignored.
  void cancel(ReqId id, int64_t now_ms);
  // The same without a word to its sink.
  void abort(ReqId id, int64_t now_ms);
  // Its sink can take more.
  void client_ready(ReqId id, int64_t now_ms);

  void handle(wire::Message message, int64_t now_ms);
  // Everything that is due; what the data plane has brought. Every kCoordinatorTickMs, or sooner.
  void tick(int64_t now_ms);
  // Called, on any thread, when the data plane has brought something: it is time for a tick().
  void on_arrival(std::function<void()> wake) { arrivals_->on_arrival(std::move(wake)); }

  void admin(PipelineOrder order, AdminOrders::Done done, int64_t now_ms);
  // Nothing new is accepted; what runs goes on.
  void drain() { draining_ = true; }
  // Ends every request and admin command.
  void fail_all(const Status& status, int64_t now_ms);
  // Told to every member that is up.
  void shut_down(int64_t grace_ms);

  // The supervisor reports that it starts a process, or that one died.
  void expect(const std::string& stage, uint32_t replica, uint64_t incarnation);
  void down(const std::string& stage, uint32_t replica, uint64_t incarnation, const std::string& reason,
            int64_t now_ms);

  PipelineHealth health() const;
  CoordinatorBooks books() const;
  const Membership& members() const { return members_; }
  // The replicas of a live request, for people and tests; empty: it is not live.
  std::vector<wire::RouteHop> route_of(ReqId id) const;

 private:
  struct OpenAbort {
    Placement::Route route;          // of the request
    std::vector<std::size_t> seats;  // that have not acknowledged
    int64_t next_ms = 0;
    int tries = 0;
  };
  using Table = std::unordered_map<ReqId, std::unique_ptr<LiveRequest>>;

  // coordinator.cc
  Status may_route(const PlacementHint& hint) const;
  Status choose_route(LiveRequest& request, const Value& inputs, std::optional<wire::TokenizedRequest> generate,
                      const PlacementHint& hint);
  void try_start(ReqId id, int64_t now_ms);
  void end(ReqId id, RequestEvent event, bool tell, int64_t now_ms);
  void refuse(ReqId id, const PipelineSink& sink, const Status& status);
  LiveRequest* find(ReqId id);
  void end_late(int64_t now_ms);
  void forget_flushed(const std::vector<wire::AdminReply>& replies);

  // coordinator_admission.cc
  Status may_submit(StageSet terminals);
  Result<StageSet> terminals_of(const Value& inputs, const SubmitOptions& options) const;
  std::string who_is_missing(StageSet terminals) const;
  bool any_serves(std::size_t stage) const;
  bool senders_know(const LiveRequest& request) const;
  std::vector<wire::RouteHop> hops(const Placement::Route& route) const;

  // coordinator_news.cc
  void on_batch(wire::ChunkBatch& batch, int64_t now_ms);
  bool on_chunk(std::size_t replica, const std::string& stage, wire::Chunk& chunk, int64_t now_ms);
  void on_inputs_complete(LiveRequest& request, std::size_t replica, const wire::InputsComplete& complete);
  Feed* feed_of(LiveRequest& request, std::size_t seat);
  Status add(LiveRequest& request, std::size_t stage, Feed& feed, wire::Chunk& chunk, int64_t now_ms);
  Status add_stream_chunk(LiveRequest& request, std::size_t stage, Feed& feed, wire::Chunk& chunk, int64_t now_ms);
  Status over_limit(const LiveRequest& request) const;
  void discard(ReqId id, const wire::Payload& payload);
  void fetch(LiveRequest& request, std::size_t stage, std::optional<uint64_t> chunk, const wire::Payload& payload,
             int64_t now_ms);
  void take_arrivals(int64_t now_ms);
  void arrive(Arrival& arrival, int64_t now_ms);
  void flush(ReqId id, int64_t now_ms);
  bool flush_feed(LiveRequest& request, std::size_t stage, Feed& feed);
  void finish(LiveRequest& request, int64_t now_ms);
  void on_late_event(ReqId id, const wire::Payload* payload);

  // coordinator_acks.cc: the window of what streams to a client.
  void watch_acks(LiveRequest& request, int64_t now_ms);
  void acknowledge(LiveRequest& request, std::size_t stage, Feed& feed, int64_t now_ms);
  void acknowledge_due(int64_t now_ms);
  void send_acks();

  // coordinator_stages.cc
  void pump_members(int64_t now_ms);
  void joined(std::size_t seat);
  void lost(const MembershipEvent& event, int64_t now_ms);
  Status send(std::size_t seat, wire::Message& message);
  void send_stranger(const MembershipMessage& message);
  // nullopt: the request has no use for the stage.
  std::optional<std::size_t> seat_of(const Placement::Route& route, std::size_t stage) const;
  void open_abort(ReqId id, const Placement::Route& route, int64_t now_ms);
  void retry_aborts(int64_t now_ms);
  void say_abort(ReqId id, OpenAbort& open, int64_t now_ms);
  void hear(const wire::AbortAck& ack);
  void acknowledged(ReqId id, std::size_t seat);
  std::string why_not_ready() const;

  const PipelineSpec& spec_;
  const Library& library_;
  const CoordinatorOptions options_;
  CoordinatorDoors& doors_;
  Payloads& payloads_;
  const StageGraph graph_;
  Membership members_;
  Placement placement_;
  AdminOrders orders_;
  std::vector<StageSeats> stages_;                 // as in the spec
  std::vector<std::size_t> stage_of_seat_;         // index of the stage
  std::vector<std::shared_ptr<Outbox>> outboxes_;  // by replica; of a lost one: empty
  std::map<std::string, std::shared_ptr<Outbox>> strangers_;
  uint64_t next_id_;
  int max_requests_ = 0;
  bool draining_ = false;
  bool was_ready_ = false;  // every stage has been there
  Table table_;
  std::set<std::pair<int64_t, uint64_t>> deadlines_;  // (ms, request)
  std::set<ReqId> unsent_;                            // pending
  std::set<ReqId> blocked_;                           // whose sink could not take more
  std::set<ReqId> streaming_;                         // whose stages wait for acknowledgements of chunks
  int64_t next_acks_ms_ = 0;
  std::map<std::size_t, std::map<ReqId, uint64_t>> acks_;  // by replica: counts of live requests that have not left
  std::unordered_map<ReqId, OpenAbort> aborts_;
  std::shared_ptr<Arrivals> arrivals_;
  CoordinatorBooks counts_;  // the counting part of it
};

}  // namespace millrace
