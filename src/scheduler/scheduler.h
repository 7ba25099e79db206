// Scheduler: continuous batching over the paged, prefix-shared KV cache. One object, one thread, no sockets; the only
// clock is the one in its options.
//
// The stage around it loops:
//
//   while (!stop) {
//     for each message:  scheduler.receive(request, out)  or  scheduler.abort(id, out)
//     bool busy = scheduler.step(poll_timeout_ms, out);    // plan and submit up to two batches -> poll -> settle one
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
// The work is done by objects with states of their own: Requests (who waits, runs, ends), AdmissionControl and
// BatchPlanner (what the next batch computes), BatchesInFlight, Settlement (what becomes of a result), SequenceMemory.
//
// Owner: the worker `generate`. Thread safety: none; every call comes from the one thread that made it.
#pragma once

#include <cstdint>

#include "base/ids.h"
#include "base/status.h"
#include "runner/runner.h"
#include "scheduler/in_flight.h"
#include "scheduler/memory.h"
#include "scheduler/options.h"
#include "scheduler/plan.h"
#include "scheduler/requests.h"
#include "scheduler/settle.h"
#include "scheduler/step_cost.h"
#include "wire/messages.h"

namespace millrace {

class Scheduler {
 public:
  using Deltas = Requests::Deltas;

  // `runner` outlives the scheduler. Wrong options are a programmer error: validate user input first with validate().
  Scheduler(SchedulerOptions options, Runner& runner);

  static Status validate(const SchedulerOptions& options) { return millrace::validate(options); }

  // Accepts (a delta with `start`) or rejects (a delta with finish kError): kResourceExhausted when the queue is full,
  // kUnavailable when draining, kInvalidArgument for a request that can never run (both numbers in the message). With
  // the priority policy a full queue drops its worst waiting request (kUnavailable) for a strictly better one.
  // An id that is live is a fault of the sender: one finish kError (kConflict) ends that id, and neither runs on.
  void receive(wire::TokenizedRequest request, Deltas& out);

  // Ends the request with finish kAborted, at once. Its pages stay until the last batch in flight that names them was
  // polled. Idempotent; unknown ids are ignored.
  void abort(ReqId id, Deltas& out);

  // Ends every request with kError and `status`, in the same way.
  void fail_all(const Status& status, Deltas& out);

  // From now on every new request is rejected with kUnavailable; what was accepted runs to its end.
  void drain() { draining_ = true; }

  // Ends whose time is over, submits batches while fewer are in flight than may be, there is work and it is time to
  // plan it, then waits up to `poll_timeout_ms` for the oldest one, or for that time, and settles what came. True:
  // there is more work (waiting, running or in flight), call again. False: idle. It never returns true without having
  // waited or moved something on.
  bool step(int poll_timeout_ms, Deltas& out);

  // Something waits, runs or is in flight.
  bool busy() const { return !requests_.empty() || !in_flight_.empty(); }

  // Forgets everything cached, in the host tier too. kConflict unless idle.
  Status flush_cache();

  // New weights are in place in the runner, and nothing is in flight: pages computed with the old ones are no longer
  // shared with new requests. The first version is what the runner tells, or the first result; a result that names
  // another version than this one is believed too, but one step late: what was computed across the change is then not
  // shared.
  void set_weight_version(uint64_t version) { memory_.set_weight_version(version); }

  // O(1).
  SchedulerFacts facts() const;

  // What changed in the cache since the last call, where options.cache.events.
  KvEvents take_events() { return memory_.take_events(); }

  // The page books of this moment; tests break them on purpose.
  SequenceMemory& memory_for_test() { return memory_; }

 private:
  void reject(const wire::TokenizedRequest& request, const Status& status, Deltas& out);
  void accept(wire::TokenizedRequest request, Deltas& out);
  bool submit(BatchPlan plan, Deltas& out);
  void check_books_when_idle();

  SchedulerOptions options_;
  Runner& runner_;
  RunnerFacts model_;
  SchedulerFacts counters_;  // only its counters; the objects below count in it
  SequenceMemory memory_;
  StepCost cost_;
  Requests requests_;
  BatchesInFlight in_flight_;
  BatchPlanner planner_;
  Settlement settlement_;
  uint64_t next_arrival_ = 0;
  bool draining_ = false;
  bool checked_idle_ = true;  // the books were checked since the last step
};

}  // namespace millrace
