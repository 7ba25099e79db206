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
// Owner: the scheduler stage. Thread safety: none; every call comes from the one thread that made it.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "runner/runner.h"
#include "scheduler/deadlines.h"
#include "scheduler/memory.h"
#include "scheduler/new_token_ratio.h"
#include "scheduler/options.h"
#include "scheduler/sequence.h"
#include "scheduler/step_cost.h"
#include "scheduler/waiting_queue.h"
#include "wire/messages.h"

namespace millrace {

class Scheduler {
 public:
  using Deltas = std::vector<wire::TokenDelta>;

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
  bool busy() const { return !sequences_.empty() || !in_flight_.empty(); }

  // Forgets everything cached, in the host tier too. kConflict unless idle.
  Status flush_cache();

  // New weights are in place in the runner, and nothing is in flight: pages computed with the old ones are no longer
  // shared with new requests. The first version is what the runner tells, or the first result; a result that names
  // another version than this one is believed too, but one step late: what was computed across the change is then not
  // shared.
  void set_weight_version(uint64_t version);

  // O(1).
  SchedulerFacts facts() const;

  // What changed in the cache since the last call, where options.cache.events.
  KvEvents take_events() { return memory_.take_events(); }

  // The page books of this moment; tests break them on purpose.
  SequenceMemory& memory_for_test() { return memory_; }

 private:
  // One row group of a batch: what is needed to settle it. A sequence lives until the last batch that names it was
  // settled (sequences_ or leaving_ own it), so this points at it: its id may be another's by then.
  struct Rows {
    Sequence* sequence = nullptr;
    int32_t count = 0;
    bool sample = false;
    int32_t score_begin = 0;  // the first prompt position that is scored
    int32_t scores = 0;       // how many are
  };
  struct InFlight {
    uint64_t step = 0;
    std::vector<Rows> rows;
    int64_t begun_us = 0;            // when the runner came to it
    std::vector<PageId> duplicates;  // held pages that this batch may name, and that nobody needs after it
  };
  struct Plan {
    Batch batch;
    std::vector<Rows> rows;
    bool empty() const { return rows.empty(); }
  };

  // What tells whether the tree has changed: its pages, and those that ever left it for want of room.
  struct TreeMark {
    int32_t cached = 0;
    uint64_t evicted = 0;
    friend bool operator==(TreeMark, TreeMark) = default;
  };

  // ---- receive.cc ----
  bool make_room_in_queue(const wire::TokenizedRequest& request, Deltas& out);
  void reject(const wire::TokenizedRequest& request, const Status& status, Deltas& out);
  void accept(wire::TokenizedRequest request, Deltas& out);

  // ---- plan.cc ----
  Plan plan(Deltas& out);
  int32_t prefill_budget(int32_t decodes) const;
  int plan_in_ms() const;
  void add_rows(Sequence& sequence, int32_t count, Plan& plan) const;
  void fill_sampling(Sequence& sequence, SequenceStep& step) const;

  // ---- room.cc ----
  enum class Room { kMade, kRetracted, kWaitForSettle };
  Room make_room_for_decodes(Deltas& out);
  bool needs_row(const Sequence& sequence) const;
  Sequence* retraction_victim() const;
  void retract(Sequence& sequence);
  void end_too_long(Sequence& sequence, Deltas& out);

  // ---- admit.cc ----
  void admit(Deltas& out);
  Admission try_admit(Sequence& sequence, int64_t& reserved);
  void start(Sequence& sequence);
  void look_up(Sequence& sequence);
  bool is_being_computed(const Sequence& sequence) const;
  int32_t growth_estimate(const Sequence& sequence) const;
  int64_t room_for(const Sequence& sequence, int64_t reserved) const;

  // ---- preempt.cc ----
  std::vector<Sequence*> preemption_victims(const Sequence& sequence) const;
  bool preempt_for(Sequence& sequence);

  // ---- settle.cc ----
  bool submit(Plan plan, Deltas& out);
  void settle(BatchResult result, Deltas& out);
  void settle_rows(const Rows& rows, SampledToken* answer, const BatchResult& result, Deltas& out);
  Status judge(const Rows& rows, const SampledToken* answer) const;
  void take_scores(Sequence& sequence, const Rows& rows, SampledToken* answer, wire::TokenDelta& delta);
  std::optional<wire::Finish> take_token(Sequence& sequence, SampledToken& answer, uint64_t version,
                                         wire::TokenDelta& delta);
  void fail_batch(const InFlight& batch, const Status& status, Deltas& out);
  void publish(Sequence& sequence);

  // ---- finish.cc ----
  void finish(Sequence& sequence, wire::Finish end, Deltas& out, wire::TokenDelta last = {});
  void let_go(Sequence& sequence);
  void leave(Sequence& sequence);
  void expire(Deltas& out);
  void check_books_when_idle();
  TreeMark mark_tree() const;
  void note_tree(TreeMark before);

  SchedulerOptions options_;
  Runner& runner_;
  RunnerFacts model_;
  SequenceMemory memory_;
  NewTokenRatio ratio_;
  StepCost cost_;
  Deadlines deadlines_;
  std::unordered_map<ReqId, std::unique_ptr<Sequence>> sequences_;  // all whose end was not told
  std::vector<std::unique_ptr<Sequence>>
      leaving_;  // ended, named by a batch in flight; at most kMaxInFlight batches' worth
  WaitingQueue waiting_;
  std::vector<Sequence*> running_;          // admitted, prefilling or decoding; by arrival
  std::deque<InFlight> in_flight_;          // the oldest first; at most kMaxInFlight
  std::optional<uint64_t> weight_version_;  // unknown until the runner or the first result tells
  Sequence* refused_ = nullptr;             // the first that this pass did not admit
  bool hold_back_ = false;                  // nothing is planned until nothing is in flight
  uint64_t tree_changes_ = 1;               // grows whenever what is cached may have changed
  uint64_t published_pages_ = 0;            // that came into the tree, ever
  uint64_t next_arrival_ = 0;
  uint64_t next_step_ = 0;
  bool draining_ = false;
  bool checked_idle_ = true;  // the books were checked since the last step
  SchedulerFacts counters_;
};

}  // namespace millrace
