// Scheduler: continuous batching over the paged, prefix-shared KV cache. One object, one thread, no sockets; the only
// clock is the one in its options.
//
// The stage around it loops:
//
//   while (!stop) {
//     for each message:  scheduler.receive(request, out)  or  scheduler.abort(id, out)
//     bool busy = scheduler.step(poll_timeout_ms, out);    // plan, submit (RunnerFacts::depth) -> poll -> settle one
//     send(out);  out.clear();
//     if (!busy) wait for the next message
//   }
//
// What comes out of `out`, in order, for one request id:
//   accepted:  { start }  { prompt logprobs, tokens }*  { finish, perhaps with the last of them }
//   rejected:  { finish = kError, code, message }                    (no `start`)
// Every request that went in ends with exactly one finish, whatever happens, and is told its end at once, also while
// batches that name its pages are in flight; after that its id may come again. docs/scheduler.md is the contract and
// names the test of each invariant.
//
// The work is done by objects with states of their own: Requests (which of them wait, run, end), AdmissionControl and
// BatchPlanner (what the next batch computes), BatchesInFlight, Settlement (what becomes of a result), PageTransfers,
// SequenceMemory.
//
// Owner: the worker `generate`. Thread safety: none; every call comes from the one thread that made it.
#pragma once

#include <cstdint>
#include <optional>

#include "base/ids.h"
#include "base/status.h"
#include "kv/media_ids.h"
#include "runner/runner.h"
#include "scheduler/in_flight.h"
#include "scheduler/memory.h"
#include "scheduler/new_sequence.h"
#include "scheduler/options.h"
#include "scheduler/page_transfers.h"
#include "scheduler/plan.h"
#include "scheduler/requests.h"
#include "scheduler/settle.h"
#include "scheduler/snapshot.h"
#include "scheduler/step_cost.h"
#include "scheduler/step_log.h"
#include "wire/messages.h"

namespace millrace {

// What a request did before the scheduler had it.
struct BeforeAcceptance {
  int64_t waited_us = 0;           // its time limits count from so long ago
  int32_t transferred_tokens = 0;  // that came for it
  Boxed<wire::KvTransferred> transfer = {};
};

class Scheduler {
 public:
  using Deltas = Requests::Deltas;

  // `runner` outlives the scheduler. Wrong options are a programmer error: validate user input first with validate().
  Scheduler(SchedulerOptions options, Runner& runner);

  static Status validate(const SchedulerOptions& options) { return millrace::validate(options); }

  // Accepts (a delta with `start`) or rejects (a delta with finish kError): kResourceExhausted when the queue is full,
  // kInvalidArgument for a request that can never run (both numbers in the message). With
  // the priority policy a full queue drops its worst waiting request (kUnavailable) for a strictly better one.
  // An id that is live is a fault of the sender: one finish kError (kConflict) ends that id, and neither runs on.
  // `prepared`: what was made of the request before it came here. `before`: what the request has behind it.
  void receive(wire::TokenizedRequest request, Deltas& out, PreparedParts prepared = {}, BeforeAcceptance before = {});

  // Ends the request with finish kAborted, at once. Its pages stay until the last batch in flight that names them was
  // polled. Idempotent; unknown ids are ignored.
  void abort(ReqId id, Deltas& out);
  // The same with finish kStop: its text met a stop that the scheduler does not see.
  void stop(ReqId id, Deltas& out);

  // Of a request whose rows come from a RowSource (PreparedParts::row_state): the rows before position `rows` can be
  // computed from now on, and no fewer than before. None can at first. Unknown ids are ignored.
  void release_rows(ReqId id, int32_t rows);

  // Ends whose time is over, submits batches while fewer are in flight than may be, there is work and it is time to
  // plan it, then waits up to `poll_timeout_ms` for the oldest one, or for that time, and settles what came. True:
  // there is more work (waiting, running or in flight), call again. False: idle. It never returns true without having
  // waited or moved something on. Paused, while the runner recovers, or while all that run wait for rows, it is idle
  // as soon as nothing is in flight, and has to be called for deadlines.
  bool step(int poll_timeout_ms, Deltas& out);

  // Something waits, runs or is in flight, KV pages of transfers included.
  bool busy() const { return !requests_.empty() || !in_flight_.empty() || transfers_.queued(); }

  // Forgets everything cached, in the host tier too; paused, all that no running request uses. kConflict unless idle or
  // paused, with nothing in flight.
  Status flush_cache();

  // Switches to the weights that the runner has staged: the next batch that is planned names them (kRetract: once
  // nothing is in flight), and requests admitted from then on find no KV of others. KV of two versions is never shared.
  // kConflict where the runner has not staged that version, or another switch is under way.
  Status switch_weights(const WeightSwitch& wanted, Deltas& out);
  // One that was asked for has not happened yet: no result of the new weights has come, and batches are in flight.
  // Until then its weights must stay staged. Where it ends otherwise, facts().weight_version is still the old one.
  bool switch_pending() const { return switch_.has_value(); }

  // Plans nothing more until resume(). Requests are accepted and wait; deadlines go on. To pause again with another
  // policy is one more pause.
  void pause(InFlightPolicy policy, Deltas& out);
  void resume() { paused_ = retract_when_drained_ = false; }
  bool paused() const { return paused_; }

  // O(1).
  SchedulerFacts facts() const;

  // Everything about this moment that people may want to see; the limits are in snapshot.h. O(pages) and more: for an
  // operator's command.
  SchedulerSnapshot snapshot() const;

  // What changed in the cache since the last call, where options.cache.events.
  KvEvents take_events() { return memory_.take_events(); }

  // KV pages from and to other schedulers. What is queued there goes with the next batch.
  PageTransfers& transfers() { return transfers_; }
  const PageTransfers& transfers() const { return transfers_; }

  // The page books of this moment; tests break them on purpose.
  SequenceMemory& memory_for_test() { return memory_; }

 private:
  void reject(const wire::TokenizedRequest& request, const Status& status, Deltas& out);
  void accept(wire::TokenizedRequest request, PreparedParts prepared, BeforeAcceptance before, Deltas& out);
  bool submit(BatchPlan plan, Deltas& out);
  void settle(BatchResult result, Deltas& out);
  void plan_batches(int& wait_ms, Deltas& out);
  bool may_plan() const;
  void apply_switch();
  Status serve_staged();
  void begin_version(uint64_t version);
  void end_switch();
  void check_kv_epoch();
  void forget_lost_kv();
  void check_books_when_idle();

  SchedulerOptions options_;
  Runner& runner_;
  RunnerFacts model_;
  SchedulerFacts counters_;  // only its counters; the objects below count in it
  SequenceMemory memory_;
  MediaIds media_ids_;
  StepCost cost_;
  StepLog log_;
  Requests requests_;
  BatchesInFlight in_flight_;
  PageTransfers transfers_;
  BatchPlanner planner_;
  Settlement settlement_;
  uint64_t next_arrival_ = 0;
  bool paused_ = false;
  bool retract_when_drained_ = false;   // paused so
  std::optional<WeightSwitch> switch_;  // that has not happened yet
  uint64_t kv_epoch_;                   // of the runner, as seen last
  bool kv_lost_ = false;                // nothing is planned before forget_lost_kv()
  bool checked_idle_ = true;            // the books were checked since the last step
};

}  // namespace millrace
