// state_json: what the worker `generate` replies to kShowState, as JSON. docs/api.md describes each member, for it goes
// to clients of /live/events as it is.
//
// Thread safety: free function.
#pragma once

#include <string>
#include <vector>

#include "scheduler/snapshot.h"

namespace millrace {

// A request that the scheduler does not know yet.
struct PreparingRequest {
  ReqId id;
  const char* state = "";  // what it waits for: "grammar", "media", "disk" or "transfer"
  int32_t prompt_tokens = 0;
  int32_t priority = 0;
  double age_s = 0;
};

// Of `preparing`, at most kMaxSnapshotRequests are shown.
std::string state_json(const SchedulerSnapshot& snapshot, const std::vector<PreparingRequest>& preparing);

}  // namespace millrace
