// StageLoop: one replica of one stage of a pipeline: it receives, aggregates, calls the worker, routes and streams. It
// is a deterministic state machine without clock, sockets or threads: handle(message, now_ms) and tick(now_ms) are all
// that moves it, and all that it sends goes through its environment (outboxes, relays, a WorkerHost). So a simulated
// cluster drives hundreds of them on one thread, in virtual time; StageLoopStage (stage_loop_stage.h) runs one on a
// thread. Ends of relay calls and outputs of the worker may come on any thread; the loop takes them in its next step,
// and `wake` reports that there are some.
//
// This class runs the steps; its parts in loop/ keep the rules:
//   lease          membership in the coordinator's session: registering, heartbeats, a new incarnation
//   peer_gate      which senders are accepted; messages of others are ignored and counted, or parked for a while
//   intake         what makes a request; input_streams: numbered edges; fan_in: payloads; fetches: gets
//   work_queue     events to the worker, and input_acks of what it has taken
//   output_router  which edges an output goes to; edge_sender: queues, windows, puts; outgoing: batches
//   request_ends   one end for each request: its result, one Failure, or an AbortAck; notices carry the last two
//
// Every list is bounded by a name in loop/limits.h or by the spec's max_requests; after all requests have ended,
// books() is all zeros but for tombstones.
//
// Owner: a StageLoopStage or a simulator. Thread safety: one thread calls.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "stages/library.h"
#include "stages/stage_loop_config.h"

namespace millrace {

namespace loop {
struct CallEnd;
struct LoopRequest;
struct StageLoopParts;
}  // namespace loop

class StageLoop {
 public:
  // kNotFound, kInvalidArgument: a rule that the library does not have. Of the library only the rules are looked at.
  static Result<std::unique_ptr<StageLoop>> make(StageLoopConfig config, const Library& library, StageLoopEnv env);
  ~StageLoop();

  void handle(wire::Message message, int64_t now_ms);
  // Everything that is due. When it wants to be called again at the latest, or loop::kNoWake.
  int64_t tick(int64_t now_ms);

  // Reports it in a last heartbeat, fails all requests and ends.
  void fail_stage(const Status& why);
  // The process is to end: the coordinator gets a last heartbeat, and fails the requests that need this replica.
  void leave(const std::string& why);
  // The same when the worker holds nothing for others, and no request is left, or after `limit_ms`. Once it holds
  // nothing, it takes no new request.
  void drain(int64_t now_ms, int64_t limit_ms);

  // After a Shutdown, when the last request has ended or the grace is over; or when the coordinator refused it.
  bool ended() const { return ended_; }
  const Status& end_status() const { return end_status_; }

  bool member() const;
  uint64_t incarnation() const;
  StageLoopBooks books() const;
  const StageLoopCounters& counters() const;

 private:
  explicit StageLoop(std::unique_ptr<loop::StageLoopParts> parts);

  // stage_loop_messages.cc
  void dispatch(wire::Message&& message);
  template <typename M>
  void on(M&& message);  // types that no stage gets
  void on(wire::Welcome&& message);
  void on(wire::Peers&& message);
  void on(wire::Shutdown&& message);
  void on(wire::AdminRequest&& message);
  void on(wire::AbortRequest&& message);
  void on(wire::RequestProbe&& message);
  void on(wire::Submit&& message);
  void on(wire::ChunkBatch&& message);
  void on(wire::AckBatch&& message);
  void unpark();
  void check_lease();
  void lose_lease(const char* why);
  void send_membership();
  bool send_heartbeat();

  // stage_loop.cc
  void run_rounds();
  Status take_relay_end(loop::LoopRequest& request, loop::CallEnd& end);
  void take_relay_ends();
  void take_outputs();
  void take_sent();
  void retry();
  void flush();
  // A part has returned why the request has to end; OK: it goes on.
  void check(ReqId id, const Status& status);
  void check_drain();
  int64_t drain_due_ms() const;
  void end(Status why);
  int64_t next_due_ms() const;

  std::unique_ptr<loop::StageLoopParts> parts_;
  std::optional<int64_t> drain_until_ms_;
  bool leaves_ = false;        // it ends by itself, not by a Shutdown
  int64_t idle_since_ms_ = 0;  // once it drains
  bool is_loading_ = false;    // the worker, when last looked at
  bool ended_ = false;
  Status end_status_;
};

}  // namespace millrace
