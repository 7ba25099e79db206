// Scheduler: continuous batching over the paged, prefix-shared KV cache. One object, one thread, no sockets, no clock.
//
// The stage around it loops:
//
//   while (!stop) {
//     for each message:  scheduler.receive(request, out)  or  scheduler.abort(id, out)
//     bool busy = scheduler.step(poll_timeout_ms, out);    // plan -> submit -> poll -> settle
//     send(out);  out.clear();
//     if (!busy) wait for the next message
//   }
//
// What comes out of `out`, in order, for one request id:
//   accepted:  { start }  { tokens }*  { finish, perhaps with the last tokens }
//   rejected:  { finish = kError, code, message }                    (no `start`)
// Every id that went in ends with exactly one finish, whatever happens; docs/scheduler.md is the contract and names the
// test of each invariant.
//
// Owner: the scheduler stage. Thread safety: none; every call comes from the one thread that made it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "runner/runner.h"
#include "scheduler/memory.h"
#include "scheduler/new_token_ratio.h"
#include "scheduler/sequence.h"
#include "scheduler/waiting_queue.h"
#include "wire/messages.h"

namespace millrace {

inline constexpr int32_t kMaxQueuedRequests = 1024;
inline constexpr int32_t kMaxRunningRequests = 256;
inline constexpr int32_t kChunkedPrefillTokens = 512;
inline constexpr int32_t kMinPrefillTokens = 16;        // of every step, so that decodes never starve prefills either
inline constexpr int32_t kMaxNewTokensEstimate = 4096;  // per request, in the admission estimate

inline constexpr double kMaxConservativeness = 10.0;

struct SchedulerOptions {
  int32_t max_running_requests = kMaxRunningRequests;
  int32_t max_queued_requests = kMaxQueuedRequests;        // waiting, not counting those that run
  int32_t chunked_prefill_tokens = kChunkedPrefillTokens;  // rows of one step, decode rows included
  int32_t max_skips = kMaxSkips;                           // later requests that may be admitted before a waiting one
  double conservativeness = 1.0;  // 0 = admit whatever fits now and retract often; larger = reserve more for growth
  bool prefix_cache = true;
  std::vector<int32_t> eos_token_ids;  // the model's end tokens
};

// What a heartbeat tells. Counters only ever grow.
struct SchedulerFacts {
  uint64_t steps = 0;  // batches that came back: busy and standing still = stalled
  int32_t running = 0;
  int32_t waiting = 0;
  int32_t pages_total = 0;
  int32_t pages_free = 0;
  int32_t pages_cached = 0;  // in the tree, those locked by running requests included
  int32_t pages_held = 0;    // owned by running requests
  int32_t page_size = 0;
  uint64_t accepted = 0;
  uint64_t rejected = 0;
  uint64_t ended = 0;  // of the accepted
  uint64_t retractions = 0;
  uint64_t prompt_tokens = 0;    // of all admitted requests
  uint64_t cached_tokens = 0;    // of those, found in the prefix cache
  uint64_t computed_tokens = 0;  // rows computed by the runner
  uint64_t book_rebuilds = 0;    // idle self-checks that found the books wrong
};

class Scheduler {
 public:
  using Deltas = std::vector<wire::TokenDelta>;

  // `runner` outlives the scheduler. Wrong options (none positive where it must be) are a programmer error: validate
  // user input first with validate().
  Scheduler(SchedulerOptions options, Runner& runner);

  // kInvalidArgument names the option, the value seen and the value wanted.
  static Status validate(const SchedulerOptions& options);

  // Accepts (a delta with `start`) or rejects (a delta with finish kError): kResourceExhausted when the queue is full,
  // kUnavailable when draining, kInvalidArgument for a request that can never run (both numbers in the message).
  // An id that is live is a fault of the sender: one finish kError (kConflict) ends that id, and neither runs on.
  void receive(wire::TokenizedRequest request, Deltas& out);

  // Ends the request with finish kAborted: at once, or, when a batch that names its pages is in flight, as soon as that
  // batch was polled. Idempotent; unknown ids are ignored.
  void abort(ReqId id, Deltas& out);

  // Ends every request with kError and `status`, in the same way.
  void fail_all(const Status& status, Deltas& out);

  // From now on every new request is rejected with kUnavailable; what was accepted runs to its end.
  void drain() { draining_ = true; }

  // Submits a batch when none is in flight and there is work, then waits up to `poll_timeout_ms` for a result and
  // settles it. True: there is more work (waiting, running or in flight), call again. False: idle.
  bool step(int poll_timeout_ms, Deltas& out);

  // Something waits, runs or is in flight.
  bool busy() const { return !sequences_.empty() || in_flight_.has_value(); }

  // New weights are in place in the runner, and nothing is in flight: pages computed with the old ones are no longer
  // shared with new requests. The first version is learnt from the first result; a result that names another version
  // than this one is believed too, but one step late: what was computed across the change is then not shared.
  void set_weight_version(uint64_t version) { weight_version_ = version; }

  SchedulerFacts facts() const;

  // The page books of this moment; tests break them on purpose.
  SequenceMemory& memory_for_test() { return memory_; }

 private:
  // What is needed to settle a submitted batch.
  struct InFlight {
    struct Rows {
      ReqId request;
      int32_t count = 0;
      bool sample = false;
    };
    uint64_t step = 0;
    std::vector<Rows> rows;
  };

  // ---- receive.cc ----
  Status check_request(const wire::TokenizedRequest& request) const;
  void reject(const wire::TokenizedRequest& request, const Status& status, Deltas& out);
  void end_or_doom(Sequence& sequence, wire::Finish end, Deltas& out);

  // ---- plan.cc ----
  Batch plan(Deltas& out);
  bool make_room_for_decodes(Deltas& out);
  Sequence* retraction_victim() const;
  void retract(Sequence& sequence);
  void admit(Deltas& out);
  int32_t growth_estimate(const Sequence& sequence) const;
  void add_rows(Sequence& sequence, int32_t count, Batch& batch) const;
  void end_too_long(Sequence& sequence, Deltas& out);

  // ---- settle.cc ----
  void submit(Batch batch, Deltas& out);
  void settle(const BatchResult& result, Deltas& out);
  void learn_weight_version(uint64_t version);
  void settle_rows(Sequence& sequence, const InFlight::Rows& rows, const SampledToken* sampled, Deltas& out);
  void accept_token(Sequence& sequence, int32_t token, Deltas& out);
  void fail_batch(const InFlight& batch, const Status& status, Deltas& out);
  void finish(Sequence& sequence, wire::Finish end, Publish publish, Deltas& out, std::vector<int32_t> last = {});
  void check_books_when_idle();

  SchedulerOptions options_;
  Runner& runner_;
  RunnerFacts model_;
  SequenceMemory memory_;
  NewTokenRatio ratio_;
  std::unordered_map<ReqId, std::unique_ptr<Sequence>> sequences_;  // all that live
  WaitingQueue waiting_;
  std::vector<Sequence*> running_;  // admitted, prefilling or decoding; by arrival
  std::optional<InFlight> in_flight_;
  std::optional<uint64_t> weight_version_;  // unknown until the first result
  uint64_t next_arrival_ = 0;
  uint64_t next_step_ = 0;
  bool draining_ = false;
  bool checked_idle_ = true;  // the books were checked since the last step
  SchedulerFacts counters_;
};

}  // namespace millrace
