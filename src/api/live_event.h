// live_event: one event of /live/events, as JSON: what the server, its stages and its schedulers do at this moment.
// docs/api.md describes its members.
//
// Bounded: kMaxLiveNames names, kMaxLiveMetrics numbers of each stage, and what the schedulers reply
// (scheduler/snapshot.h). No token and no text of a prompt or an answer is in it.
//
// Thread safety: free function; the io thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "api/routes.h"
#include "wire/messages.h"

namespace millrace::api {

inline constexpr std::size_t kMaxLiveNames = 1024;
inline constexpr std::size_t kMaxLiveMetrics = 64;

struct LiveFacts {
  int64_t period_ms = 0;
  std::size_t clients = 0;
};

// `replies`: of all stages to kShowState.
std::string live_event(ApiContext& context, const std::vector<wire::AdminReply>& replies, const LiveFacts& facts);

}  // namespace millrace::api
