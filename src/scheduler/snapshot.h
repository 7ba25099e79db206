// SchedulerSnapshot: what a scheduler does at this moment, for operators: its requests, its last steps, the
// state of each page, and the radix tree. Numbers alone, no token and no text.
//
// It is made for an operator's command (Scheduler::snapshot()), and has at most kMaxSnapshotRequests requests,
// kLoggedSteps steps, kMaxMappedPages pages and kMaxSummaryNodes nodes.
//
// Thread safety: values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kv/cache_summary.h"
#include "scheduler/memory.h"
#include "scheduler/options.h"
#include "scheduler/requests.h"
#include "scheduler/step_log.h"

namespace millrace {

inline constexpr std::size_t kMaxSnapshotRequests = 256;
inline constexpr int32_t kMaxMappedPages = 4096;

struct RequestSnapshot {
  enum class State : uint8_t { kQueued = 0, kPrefilling = 1, kDecoding = 2 };
  ReqId id;
  State state = State::kQueued;
  int32_t prompt_tokens = 0;
  int32_t cached_tokens = 0;
  int32_t output_tokens = 0;
  int32_t max_tokens = 0;  // that it may generate
  int32_t computed = 0;    // prefilling: so many of the next are computed, cached ones included
  int32_t to_compute = 0;
  int32_t pages = 0;
  int32_t priority = 0;
  int32_t retractions = 0;
  double age_s = 0;  // since acceptance
};

struct SchedulerSnapshot {
  SchedulerFacts facts;
  std::vector<RequestSnapshot> requests;  // those that run, then those that wait, each in the order of arrival
  std::vector<LoggedStep> steps;          // the oldest first
  // A letter for each page: 'f' free, 'c' cached, 'r' cached and used by running requests, 'h' held by one of these,
  // 'i' importing. Empty where there are more than kMaxMappedPages.
  std::string page_map;
  CacheSummary cache;
};

const char* request_state_name(RequestSnapshot::State state);  // "queued"

// `facts` are those of the same scheduler, of this moment.
SchedulerSnapshot take_snapshot(const SchedulerFacts& facts, const Requests& requests, const SequenceMemory& memory,
                                const StepLog& steps, int64_t now_us);

}  // namespace millrace
