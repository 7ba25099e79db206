// StageLoop: one replica of one stage of a pipeline: receive, aggregate, work, route, stream. The contract:
//
// Shape. The loop is a machine without clock, sockets or threads: handle(message, now_ms) and tick(now_ms) are all that
// makes it move, and everything that it says goes through its doors: outboxes, relays, a WorkerHost. So a simulated
// cluster drives hundreds of them on one thread, in virtual time. StageLoopStage (stage_loop_stage.h) is the shell that
// runs one on a thread. Ends of relay calls and news of the worker may come on any thread; the loop hears them in its
// next handle() or tick(), and `wake` says that there is something to hear.
//
// What it keeps, for each request:
//   1. One end. A request that came here leaves by exactly one of: its result sent on (a terminal: to the coordinator),
//      one Failure to the coordinator, or an AbortAck. Whatever goes wrong with one request (a worker's error or
//      exception, a rule's, a relay's, a lost message, a dead peer) fails that request alone.
//   2. Order. On each edge chunks leave in the order of the worker's outputs: stream, end, result, numbered from 0.
//      They leave in batches, one for each receiver and step (loop/outgoing.h). A chunk goes into its batch as soon as
//      put() has returned its descriptor, before the put is over. Gets may end in any order; the worker gets chunks in
//      theirs. Numbers have no gap: a gap, a chunk after the end or a second source on one edge fails the request; a
//      repeated chunk is ignored and counted.
//   3. No waiting for each other. What a relay or an outbox has no room for waits in its own edge's queue, everything
//      else goes on; it is tried again every kRetryMs in the order of waiting. At most wire::kMaxUnackedChunks chunks
//      of a stream are unacknowledged; what the worker says beyond waits. From kCongestedChunks on, the request is
//      congested: it gets no further chunks, so that its senders wait too, and Emit::congested asks the worker to let
//      it rest; over kMaxWaitingChunks or kMaxWaitingBytes it fails with kResourceExhausted.
//   4. Fan-in. Payloads of `wait_for` are kept until those of the rule's answer are here, then merged. Without
//      `wait_for` a second source's payload is an error of the request. A chunk before the payload fails the request
//      unless the spec allows it; one whose payload is being fetched waits. What has to wait for something else, for
//      the worker or for a congested request is copied out of its relay (loop/detach.h), so that no credit waits for
//      another one, and no request for a slow one.
//   5. Streams out. An untargeted chunk goes to those of stream_to that `stream_done_to` names for the request's
//      payload (all, without that rule); a terminal without stream_to streams to the client. Only terminals stream to
//      the client. The ends of streams go out before the result. A target from which none of the request's terminals
//      can be reached gets nothing of it, whatever the rules say.
//   6. Replicas. The request's route names the receiver, the same for all senders. A replica that the table says is
//      down, or that came back as another incarnation, fails the requests that were bound to it; one that is not in the
//      table yet, or down there before anything was sent to it, is waited for, kPeerWaitMs at most.
//   7. Aborts, at any step: before the payload came (a tombstone), while it is fetched (cancelled), in the worker
//      (drop), while it is sent (puts are cancelled). The AbortAck follows when nothing of the request is left here,
//      worker and relays included; at once for unknown ids.
//   8. Time. A request has a deadline; what is left of it travels with every message. Over it, the request fails here
//      with kDeadline.
//   9. Strangers. Messages of another session or of a dead incarnation, and of stages that are no predecessors, are
//      ignored and counted. Those of an incarnation that the table does not have yet are parked for kParkMs.
//  10. Leases. It registers every kRegisterMs until a Welcome comes, then says StageStatus every kHeartbeatMs. When no
//      heartbeat left for longer than the lease (it was stopped, or the coordinator is gone), or nothing was heard of
//      the coordinator for kCoordinatorSilentLeases, it drops all requests without a word and registers as a new
//      incarnation: a zombie says nothing stale.
//  11. Books. Every list is bounded by a name in loop/limits.h or by the spec's max_requests; after all requests have
//      ended, books() is all zeros but for tombstones.
//  12. Complete inputs. When all that a source will ever send for a request has come, or its result has, the loop
//  reports
//      it to the coordinator: the loss of that stage costs the request nothing then, as far as it is only needed here.
//
// Owner: a StageLoopStage or a simulator. Thread safety: one thread calls; see `wake` for the others.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/hash.h"
#include "control/mailbox.h"
#include "stages/library.h"
#include "stages/loop/address_book.h"
#include "stages/loop/detach.h"
#include "stages/loop/outgoing.h"
#include "stages/loop/relay_calls.h"
#include "stages/loop/relay_choice.h"
#include "stages/loop/request.h"
#include "stages/loop/tombstones.h"
#include "stages/loop/worker_host.h"
#include "stages/stage_spec.h"

namespace millrace {

struct StageLoopConfig {
  StageSpec spec;
  bool entry = false;                        // it gets what is submitted
  std::vector<std::string> payload_from;     // whose `next` names it
  std::vector<std::string> stream_from;      // whose `stream_to` names it
  std::map<std::string, uint32_t> replicas;  // of every stage of the pipeline
  // Of each target: the terminals that its work may get to. A target that is not here gets everything.
  std::map<std::string, std::vector<std::string>> reaches;
  wire::Peer self;         // stage, replica, first incarnation, endpoint, host, boot, pid
  std::string reply_to;    // as in wire::Register
  uint64_t spec_hash = 0;  // as in wire::Register
  uint32_t nth = 0;        // of so many replicas of this stage that share this machine
  int of = 1;
  wire::Peer coordinator;                       // how results reach it: host, boot, pid, relays
  int64_t stalled_ms = loop::kWorkerStalledMs;  // a call of the worker that lasts longer; 0: it may last for ever
};

// The part that the pipeline's shape decides; `self`, `reply_to`, `coordinator` and `spec_hash` are left to the caller.
// kNotFound: no such stage.
Result<StageLoopConfig> make_loop_config(const std::vector<StageSpec>& stages, const std::string& entry,
                                         const std::string& stage);

struct StageLoopDoors {
  std::shared_ptr<Outbox> coordinator;
  loop::Connect connect;  // to a peer's inbox
  loop::Relays relays;    // by name; self.relays is made from these
  std::unique_ptr<loop::WorkerHost> worker;
  std::function<void()> wake;                          // on any thread: there is something to hear; may be empty
  std::function<uint64_t(uint64_t)> next_incarnation;  // after this one; larger. Empty: one more
  // Profile commands, which are for the whole process: the reply's text. Empty: they go to the worker, as all others.
  std::function<Result<std::string>(const wire::AdminRequest&)> admin;
  // Numbers of the whole process for the heartbeats, bounded; asked where the coordinator is another process. Empty:
  // another stage of this process tells them.
  std::function<std::vector<wire::Metric>()> process_metrics;
};

// What is open now. Everything but tombstones is 0 when all requests have ended.
struct StageLoopBooks {
  std::size_t requests = 0;
  std::size_t ending = 0;  // of these
  std::size_t puts = 0;
  std::size_t gets = 0;
  std::size_t drains = 0;        // of these gets
  std::size_t held_chunks = 0;   // received, not given to the worker
  std::size_t queued_items = 0;  // put out by the worker, not sent
  std::size_t queued_bytes = 0;
  std::size_t worker_events = 0;  // not given to the worker's host
  std::size_t parked = 0;
  std::size_t notices = 0;
  std::size_t lists = 0;  // entries of the lists of what is tried again
  std::size_t tombstones = 0;
};

// Since the start.
struct StageLoopCounters {
  uint64_t received = 0;         // requests
  uint64_t finished = 0;         // results sent on
  uint64_t failed = 0;           // failures said
  uint64_t aborted = 0;          // acknowledged aborts of requests that were here
  uint64_t stale = 0;            // messages of another session or incarnation
  uint64_t strangers = 0;        // of stages that are no predecessors, or for another stage
  uint64_t repeated = 0;         // submits and chunks that were here before
  uint64_t late = 0;             // of requests that had ended here
  uint64_t unexpected = 0;       // message types that no stage gets, acknowledgements of what was never sent
  uint64_t refusals = 0;         // puts, gets and sends that found no room and were tried again
  uint64_t late_put_errors = 0;  // puts that ended badly after their reader had acknowledged them
  uint64_t lost_notices = 0;     // over kMaxNotices
  uint64_t rejoins = 0;          // leases lost
  uint64_t chunks_in = 0;        // given to the worker
  uint64_t chunks_out = 0;       // sent
};

class StageLoop {
 public:
  // kNotFound, kInvalidArgument: a rule that the library does not have. Of the library only the rules are looked at.
  static Result<std::unique_ptr<StageLoop>> make(StageLoopConfig config, const Library& library, StageLoopDoors doors);
  ~StageLoop();

  void handle(wire::Message message, int64_t now_ms);
  // Everything that is due. When it wants to be called again at the latest, or loop::kNoWake.
  int64_t tick(int64_t now_ms);

  // Says so in a last heartbeat, fails all requests and ends.
  void fail_stage(const Status& why);
  // It ends because somebody wants that: the coordinator hears it at once, and fails the requests that need it.
  void leave(const std::string& why);

  // After a Shutdown, when the last request has ended or the grace is over; or when the coordinator refused it.
  bool ended() const { return ended_; }
  const Status& end_status() const { return end_status_; }

  bool member() const { return standing_ == Membership::kMember; }
  uint64_t incarnation() const { return config_.self.incarnation; }
  StageLoopBooks books() const;
  const StageLoopCounters& counters() const { return counters_; }

 private:
  enum class Membership : uint8_t { kJoining, kMember };
  enum class Heard : uint8_t { kFine, kPark, kIgnore };
  struct Rules {
    Library::Route route;
    Library::WaitRule wait;
    Library::Merge merge;
    Library::Route stream_done_to;
    std::map<std::string, Library::Projection> project;
  };
  struct Parked {
    wire::Message message;
    int64_t until_ms = 0;
    std::size_t size_bytes = 0;
  };
  struct WaitingGet {
    loop::CallPurpose purpose;
    wire::Payload payload;
  };
  // A chunk goes into the coordinator's batch.
  using Notice = std::variant<wire::Chunk, wire::Message>;
  using Request = loop::LoopRequest;

  StageLoop(StageLoopConfig config, Rules rules, StageLoopDoors doors);
  static std::vector<std::string> sources_of(const StageLoopConfig& config);
  static Status find_rules(const StageSpec& spec, const Library& library, Rules& rules);

  // loop/membership.cc: with the coordinator.
  void on(wire::Welcome&& message);
  void on(wire::Peers&& message);
  void on(wire::Shutdown&& message);
  void on(wire::AdminRequest&& message);
  void reply(uint64_t command, const Result<std::string>& text);
  void watch_lease();
  void lose_lease(const char* why);
  void say_membership();
  void worry();
  void heartbeat();
  wire::StageStatus status() const;
  void add_process_metrics(wire::StageStatus& status) const;
  void notify(Notice notice);
  void flush_notices();
  void watch_drain();
  void end(Status why);
  wire::Origin origin() const;

  // loop/receive.cc: what comes in, and the gets.
  template <typename M>
  void on(M&& message);  // types that no stage gets
  void on(wire::Submit&& message);
  void on(wire::ChunkBatch&& message);
  void on(wire::AckBatch&& message);
  void dispatch(wire::Message&& message);
  Heard from_coordinator(const wire::Origin& from);
  Heard from_peer(const wire::Origin& from);
  bool park(wire::Message&& message, std::size_t size_bytes);
  void unpark();
  void on_chunk_in(const wire::Origin& from, wire::Chunk& chunk);
  void on_chunk_in(Request& request, const wire::Origin& from, wire::Chunk& chunk);
  void on_ack(const wire::Origin& from, const wire::Ack& ack);
  Request* request_for(ReqId id, int64_t timeout_ms, std::vector<std::string> terminals,
                       std::vector<wire::RouteHop> route);
  void ended_before(loop::Ended how, const wire::Origin& from, const wire::Chunk& chunk);
  void fetch(Request& request, loop::CallPurpose purpose, wire::Payload payload);
  Result<bool> try_get(const loop::CallPurpose& purpose, const wire::Payload& payload, int64_t timeout_ms);
  void drain(ReqId id, const wire::Payload& payload);
  void hear_relays(std::vector<loop::CallEnd>& ends);
  void fetched(Request& request, const loop::CallPurpose& purpose, Result<Value> value);
  void put_ended(Request& request, const loop::CallEnd& end);

  // loop/aggregate.cc: from payloads to the start of the work.
  void on_payload_header(Request& request, const wire::Origin& origin, uint64_t seq, wire::Payload& payload);
  void payload_here(Request& request, const std::string& from, Value value);
  Status ask_wait_rule(Request& request, const std::string& from, const Value& value);
  Status check_sources(const Request& request) const;
  void maybe_merge(Request& request);
  void start(Request& request, Value payload);
  void start(Request& request, wire::TokenizedRequest generate);

  // loop/stream.cc: streams into the stage.
  loop::InEdge* next_on_edge(Request& request, const wire::Origin& from, const wire::Chunk& chunk);
  void on_stream_chunk(Request& request, const wire::Origin& from, wire::Chunk& chunk);
  bool pass_delta(Request& request, const std::string& from, loop::InEdge& edge, wire::Chunk& chunk);
  void on_stream_end(Request& request, const wire::Origin& from, const wire::Chunk& chunk);
  bool has_all_of(const Request& request, const std::string& source) const;
  void report_inputs(Request& request);
  bool is_too_early(const Request& request) const;
  void watch_early(Request& request);
  void deliver(Request& request);
  void deliver(Request& request, const std::string& from, loop::InEdge& edge);
  void acknowledge(ReqId id, const std::string& from, const loop::EdgeEnd& source, uint64_t count, loop::InEdge* edge);
  void acknowledge_if_due(ReqId id, const std::string& from, loop::InEdge& edge);
  void acknowledge_idle();

  // loop/work.cc: to and from the worker.
  void to_worker(Request& request, loop::WorkEvent event);
  void post_events(Request& request);
  void let_wait(loop::WorkEvent& event);
  void drop_from_worker(Request& request);
  void on_outputs(std::vector<loop::WorkOutput>& outputs);
  void on_output(Request& request, loop::WorkOutput& output);
  void on_chunk(Request& request, loop::WorkOutput& output);
  bool send_delta(Request& request, Body& body, bool to_client);
  static loop::Outgoing::Receiver address_of(const loop::OutEdge& edge);
  void count_sent(loop::OutEdge& edge, std::size_t size_bytes);
  void chunk_posted(Request& request, const std::string& from, loop::InEdge& edge);
  void on_result(Request& request, Value result);
  Result<Lifted> project(const std::string& target, const Value& result) const;
  Result<std::vector<std::string>> targets_of(const Library::Route& rule, const std::vector<std::string>& all, ReqId id,
                                              const Value& value, const char* what, bool may_be_none) const;

  // loop/send.cc: out of the stage.
  bool wanted(const Request& request, const std::string& target) const;
  void queue(Request& request, const std::string& target, loop::OutItem item);
  void pump(Request& request, loop::OutEdge& edge);
  Status send_front(Request& request, loop::OutEdge& edge);
  Status later(loop::OutEdge& edge, const Status& refusal);
  Status prepare(Request& request, loop::OutEdge& edge, loop::OutItem& item, const wire::Peer& to);
  Status put(Request& request, const loop::OutEdge& edge, const loop::OutItem& item, const wire::Peer& to,
             wire::Payload& payload);
  Result<const wire::Peer*> receiver(const Request& request, loop::OutEdge& edge);
  Result<wire::RouteHop> hop_to(const Request& request, const std::string& target) const;
  Status absent(loop::OutEdge& edge, const std::string& what);
  wire::Chunk build(const Request& request, const loop::OutEdge& edge, loop::OutItem& item,
                    wire::Payload payload) const;
  void sent(Request& request, loop::OutEdge& edge);
  Status check_waiting(const Request& request) const;
  void watch_congestion(Request& request);
  Status send_batch(const loop::Outgoing::Receiver& to, wire::Message& message);
  void flush();
  void on_sent();
  void retry();

  // loop/abort.cc: ends.
  void on(wire::AbortRequest&& message);
  void fail(Request& request, Status why);
  void let_go(Request& request);
  void maybe_over(Request& request) { to_sweep_.push_back(request.id); }
  void sweep();
  bool is_over(const Request& request) const;
  void bury(Request& request);
  void expire();
  void watch_peers();
  void tell_streams(Request& request, const Status& why);

  Request* live(ReqId id);
  // Tells the visits of one request to several stages of one process apart.
  uint64_t trace_id(ReqId id) const { return mix_bits(id.value ^ hash_name(config_.self.stage)); }
  void settle();

  StageLoopConfig config_;
  const std::vector<std::string> sources_;  // payload_from and stream_from, each once
  const Rules rules_;
  StageLoopDoors doors_;
  StageLoopCounters counters_;
  int64_t now_ms_ = 0;

  std::map<ReqId, std::unique_ptr<Request>> requests_;  // at most spec.resources.max_requests
  std::set<std::pair<int64_t, ReqId>> deadlines_;       // one for each live request
  loop::Tombstones tombstones_;
  loop::AddressBook book_;
  loop::Outgoing outgoing_;
  loop::RelayCalls calls_;
  loop::DetachBudget detached_{loop::kMaxDetachedBytes};
  std::size_t drains_ = 0;

  // What is tried again, in the order of waiting; entries of requests that have ended are skipped.
  std::deque<std::pair<ReqId, std::string>> waiting_edges_;
  std::deque<WaitingGet> waiting_gets_;
  std::deque<ReqId> worker_line_;
  int64_t retry_ms_ = loop::kNoWake;
  std::vector<ReqId> to_sweep_;
  bool more_to_settle_ = false;

  Membership standing_ = Membership::kJoining;
  uint64_t session_ = 0;  // of the coordinator that we are a member of, or were last
  int64_t lease_ms_ = loop::kDefaultLeaseMs;
  int64_t beat_left_ms_ = 0;  // when a heartbeat was last taken by the outbox
  int64_t heard_ms_ = 0;      // the coordinator
  int64_t next_say_ms_ = 0;   // Register or StageStatus
  int64_t next_word_ms_ = 0;  // to a person about a coordinator that is silent; 0: not begun to wait
  bool told_waits_ = false;   // that its place is taken, to a person
  bool worried_ = false;      // a person was told, and waits for better news
  std::string unanswered_;    // why a registration has no answer, as far as we know; empty: we do not
  int64_t next_ack_ms_ = loop::kNoWake;
  std::deque<Notice> notices_;
  std::deque<Parked> parked_;
  std::size_t parked_bytes_ = 0;
  uint64_t last_calls_ = 0;
  std::optional<int64_t> drain_until_ms_;
  bool ended_ = false;
  Status end_status_;
};

}  // namespace millrace
