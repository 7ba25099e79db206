// Requests: every request whose end was not told, and where each stands: it waits, it runs, or it has ended and only
// keeps its pages until the last batch that names it was settled.
//
//   add() -> waiting --start()--> running --end()--> leaving (while a batch names it) --leave()--> gone
//               ^-----retract()------'                  end() of one that no batch names: gone at once
//
// Invariants: a sequence is in exactly one of the three; running() is in the order of arrival; each is ended once.
//
// Owner: the scheduler. Thread safety: none.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "scheduler/deadlines.h"
#include "scheduler/memory.h"
#include "scheduler/options.h"
#include "scheduler/sequence.h"
#include "scheduler/waiting_queue.h"
#include "wire/generation.h"

namespace millrace {

class Requests {
 public:
  using Deltas = std::vector<wire::TokenDelta>;

  // What is passed outlives it. It counts ends, drops and retractions in `counters`.
  Requests(const SchedulerOptions& options, SequenceMemory& memory, SchedulerFacts& counters);

  bool empty() const { return live_.empty(); }
  Sequence* find(ReqId id) const;
  const std::vector<Sequence*>& running() const { return running_; }
  int32_t running_count() const { return static_cast<int32_t>(running_.size()); }
  // Some run, and none of these has a row that can be computed before it is released.
  bool starved() const;
  WaitingQueue& waiting() { return waiting_; }
  const WaitingQueue& waiting() const { return waiting_; }

  // Whether one more of `priority` may wait. With the priority policy the worst of a full queue gives way to a strictly
  // better one.
  bool make_space(int32_t priority, Deltas& out);
  // It waits from now on. Its id is not live.
  void add(std::unique_ptr<Sequence> sequence);
  // It has its pages and the queue lets it go: it runs.
  void start(Sequence& sequence);
  // A running one that no batch names waits again, with all its tokens and none of its pages.
  void retract(Sequence& sequence);
  // All running ones, when nothing is in flight.
  void retract_all();
  // Those that wait will be computed with other weights than before: what was captured of their prompts so far is
  // forgotten.
  void restart_captures();

  // The one place where a request ends. Its client hears it now, with `last` bringing the last tokens. Its pages stay
  // until no batch in flight names them; `sequence` is gone afterwards, unless one does.
  void end(Sequence& sequence, wire::Finish end, Deltas& out, wire::TokenDelta last = {});
  bool has_deadlines() const { return deadlines_.size() > 0; }
  // Ends whose time was over at `now_us`.
  void end_expired(int64_t now_us, Deltas& out);
  // Ends all, in the order of arrival.
  // Ends all with kAborted, in the order of arrival.
  void abort_all(Deltas& out);
  // A batch that names this ended one was settled: it goes with the last such batch.
  void leave(Sequence& sequence);

  // Ended ones that keep pages: none when nothing is in flight.
  std::size_t leaving_count() const { return leaving_.size(); }
  void forget_leaving() { leaving_.clear(); }

 private:
  void release(Sequence& sequence);

  const SchedulerOptions& options_;
  SequenceMemory& memory_;
  SchedulerFacts& counters_;
  std::unordered_map<ReqId, std::unique_ptr<Sequence>> live_;  // waiting or running
  WaitingQueue waiting_;
  std::vector<Sequence*> running_;
  std::vector<std::unique_ptr<Sequence>> leaving_;  // at most as many as RunnerFacts::depth batches name
  Deadlines deadlines_;
};

}  // namespace millrace
