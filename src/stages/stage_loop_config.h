// What a stage loop (stages/stage_loop.h) is made of: its configuration, its environment, and the numbers that it
// shows.
//
// Thread safety: values.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/span.h"
#include "control/mailbox.h"
#include "stages/loop/address_book.h"
#include "stages/loop/relay_choice.h"
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
  std::map<std::string, std::string> target_workers;  // of each of spec.stream_to
  wire::Peer self;                                    // stage, replica, first incarnation, endpoint, host, boot, pid
  std::string reply_to;                               // as in wire::Register
  uint64_t spec_hash = 0;                             // as in wire::Register
  uint32_t nth = 0;                                   // of so many replicas of this stage that share this machine
  int of = 1;
  uint32_t weights_rank = 0;                    // as the worker gets it
  wire::Peer coordinator;                       // how results reach it: host, boot, pid, relays
  int64_t stalled_ms = loop::kWorkerStalledMs;  // a call of the worker that lasts longer; 0: it may last for ever

  // payload_from and stream_from, each once.
  std::vector<std::string> sources() const;
  std::vector<std::string> targets() const;  // those of next and stream_to, each once
};

// The part that the pipeline's shape decides; `self`, `reply_to`, `coordinator` and `spec_hash` are left to the caller.
// kNotFound: no such stage.
Result<StageLoopConfig> make_loop_config(const std::vector<StageSpec>& stages, const std::string& entry,
                                         const std::string& stage);

// All that a loop reaches outside itself.
struct StageLoopEnv {
  std::shared_ptr<Outbox> coordinator;
  loop::Connect connect;  // to a peer's inbox
  loop::Relays relays;    // by name; self.relays is made from these
  std::unique_ptr<loop::WorkerHost> worker;
  std::function<void()> wake;                          // on any thread: a tick() is due; may be empty
  std::function<uint64_t(uint64_t)> next_incarnation;  // after this one; larger. Empty: one more
  // Commands about profiles and the log, which are for the whole process: the reply's text. Empty: they go to the
  // worker, as all others.
  std::function<Result<std::string>(const wire::AdminRequest&)> admin;
  // Each table of peers that is newer than the last one, on the loop's thread; may be empty.
  std::function<void(const wire::Peers&)> on_peers;
  std::function<void()> on_lease_lost;  // until it has another one, there are no tables
  // Numbers of the whole process for the heartbeats, bounded; asked where the coordinator is another process. Empty:
  // another stage of this process reports them.
  std::function<std::vector<wire::Metric>()> process_metrics;
  std::shared_ptr<SpanSink> spans;  // of requests that are traced; null: this process exports none
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
  uint64_t failed = 0;           // failures reported
  uint64_t aborted = 0;          // acknowledged aborts of requests that were here
  uint64_t stale = 0;            // messages of another session or incarnation
  uint64_t misaddressed = 0;     // of stages that are no predecessors, or for another stage
  uint64_t repeated = 0;         // submits and chunks that were here before
  uint64_t late = 0;             // of requests that had ended here
  uint64_t unexpected = 0;       // message types that no stage gets, acknowledgements of what was never sent
  uint64_t refusals = 0;         // puts, gets and sends that were refused and tried again
  uint64_t late_put_errors = 0;  // puts that ended badly after their reader had acknowledged them
  uint64_t lost_notices = 0;     // over kMaxNotices
  uint64_t rejoins = 0;          // leases lost
  uint64_t chunks_in = 0;        // given to the worker
  uint64_t chunks_out = 0;       // sent
};

}  // namespace millrace
