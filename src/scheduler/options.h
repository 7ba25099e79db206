// SchedulerOptions: the choices of whoever runs a scheduler; SchedulerFacts: what it tells of itself.
// Thread safety: values.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/status.h"
#include "kv/cache_options.h"
#include "scheduler/policy.h"
#include "scheduler/waiting_queue.h"
#include "wire/messages.h"

namespace millrace {

inline constexpr int32_t kMaxQueuedRequests = 1024;
inline constexpr int32_t kMaxRunningRequests = 256;
inline constexpr int32_t kChunkedPrefillTokens = 512;
inline constexpr int32_t kMinPrefillTokens = 16;  // of every step, so that decodes never starve prefills either
inline constexpr int64_t kPlanLeadUs = 2000;      // a batch is planned so long before the one before it should end, ...
inline constexpr int64_t kPlanLeadPart = 8;       // ... or this part of what that one takes, where it is more
inline constexpr int32_t kMaxNewTokensEstimate = 4096;  // per request, in the admission estimate
inline constexpr double kMaxConservativeness = 10.0;
inline constexpr int32_t kMaxForcedRun = 32;  // rows of forced tokens of one sequence in one step (forced_run.h)
inline constexpr int32_t kPriorityPreemptionGap = 10;
inline constexpr int32_t kMaxPreemptions = 4;       // of one request in its life; then it stays
inline constexpr int32_t kMaxDeferredPasses = 256;  // that a request waits for another to compute its next page

using wire::InFlightPolicy;

struct WeightSwitch {
  uint64_t version = 0;
  InFlightPolicy policy = InFlightPolicy::kInPlace;
  bool flush_cache = false;  // frees what is cached of other versions at once; else it is evicted as memory is needed
};

struct SchedulerOptions {
  int32_t max_running_requests = kMaxRunningRequests;
  int32_t max_queued_requests = kMaxQueuedRequests;        // waiting, beyond those that may run at once
  int32_t chunked_prefill_tokens = kChunkedPrefillTokens;  // rows of one step, decode rows included
  int32_t max_decode_gap_ms = 0;  // while a request decodes, a step is planned to take no longer; 0: no such target
  int32_t max_skips = kMaxSkips;  // see waiting_queue.h
  double conservativeness = 1.0;  // 0 = admit whatever fits now and retract often; larger = reserve more for growth
  Policy policy = Policy::kFcfs;
  uint64_t policy_seed = 0;  // of Policy::kRandom
  // With Policy::kPriority: one that waits may take the place of running ones whose priority is smaller by more.
  int32_t priority_preemption_gap = kPriorityPreemptionGap;
  int32_t max_forced_run = kMaxForcedRun;  // 0: each forced token takes a step of its own
  bool overlap = true;                     // plan and submit the next batch while one runs
  bool prefix_cache = true;
  CacheOptions cache;                         // which pages go first, and when they are copied to the host tier
  std::vector<int32_t> eos_token_ids;         // the model's end tokens
  std::vector<int32_t> suppressed_token_ids;  // never drawn
  std::function<int64_t()> now_us;            // a clock that never goes back, for deadlines; unset: the steady clock
};

// kInvalidArgument names the option, the value seen and the value wanted.
Status validate(const SchedulerOptions& options);

// What a heartbeat tells. The first group are of this moment; counters only ever grow.
struct SchedulerFacts {
  int32_t running = 0;
  int32_t waiting = 0;
  int32_t in_flight = 0;  // batches
  bool paused = false;
  int32_t pages_total = 0;
  int32_t pages_free = 0;
  int32_t pages_cached = 0;     // in the tree, those locked by running requests included
  int32_t pages_held = 0;       // owned by running requests
  int32_t pages_locked = 0;     // cached ones that running requests use
  int32_t pages_importing = 0;  // bytes from another scheduler are on their way into them
  int32_t leases = 0;           // cached prefixes that are kept for another scheduler
  int32_t page_size = 0;
  int32_t host_pages_total = 0;
  int32_t host_pages_used = 0;
  int64_t used_tokens = 0;     // whose KV running requests hold; a shared page counts once
  double new_token_ratio = 0;  // new_token_ratio.h
  uint64_t weight_version = 0;
  double step_fixed_us = 0, step_row_us = 0;  // what a step is believed to cost (step_cost.h)

  uint64_t steps = 0;  // batches that came back: busy and standing still = stalled
  uint64_t accepted = 0;
  uint64_t rejected = 0;
  uint64_t ended = 0;     // of the accepted; the next four are among them
  uint64_t aborted = 0;   // by kAborted
  uint64_t failed = 0;    // by kError, deadlines included
  uint64_t deadline = 0;  // by kDeadline
  uint64_t dropped = 0;   // from the full queue, for a request of higher priority
  uint64_t admitted = 0;  // for the first time
  uint64_t queue_us = 0;  // their waiting times added up
  uint64_t retractions = 0;
  uint64_t preempted = 0;            // of those, for a request of higher priority
  uint64_t deferred = 0;             // requests that waited for another to compute a prefix they share
  uint64_t look_ups = 0;             // of a waiting request's prefix in the cache
  uint64_t prompt_tokens = 0;        // of all admitted requests
  uint64_t cached_tokens = 0;        // of those, found in the prefix cache, the host tier included
  uint64_t host_tokens = 0;          // of those, in the host tier
  uint64_t evicted_tokens = 0;       // from the pool's cache
  uint64_t host_evicted_tokens = 0;  // from the host tier
  uint64_t backed_up_tokens = 0;     // copied to the host tier
  uint64_t loaded_tokens = 0;        // copied back
  uint64_t imported_tokens = 0;      // whose KV came from other schedulers (page_transfers.h)
  uint64_t exported_tokens = 0;      // whose KV was read for them
  uint64_t revoked_leases = 0;       // because a request that ran alone, or a flush, needed the pages
  uint64_t generated_tokens = 0;     // stop tokens included
  uint64_t forced_run_tokens = 0;    // of those, computed in one step with others (forced_run.h)
  uint64_t computed_tokens = 0;      // rows computed by the runner: prefill and decode
  uint64_t prefill_rows = 0;
  uint64_t decode_rows = 0;
  uint64_t wasted_rows = 0;    // of those, for requests that had ended when the batch came back
  uint64_t compute_us = 0;     // of the runner
  uint64_t idle_us = 0;        // of the runner, between batches
  uint64_t bubbles = 0;        // times when no second batch could be planned, because memory was short
  uint64_t kv_losses = 0;      // changes of Runner::kv_epoch(): all KV was computed again
  uint64_t book_rebuilds = 0;  // idle self-checks that found the books wrong
};

}  // namespace millrace
