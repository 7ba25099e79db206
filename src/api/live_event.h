// live_event: one event of /live/events, as JSON: what the server, its stages and its schedulers do at this moment.
// docs/api.md describes its members.
//
// Bounded: kMaxLiveNames names, kMaxLiveMetrics numbers of each stage, what the schedulers reply
// (scheduler/snapshot.h), and of the log kMaxLiveLogLines of what base/log_tail.h keeps. Clients that are trusted
// (http/message.h) get the log and how prompts begin too; to others no text of a request is shown.
//
// Thread safety: free function; the io thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "api/routes.h"
#include "base/log_tail.h"
#include "wire/messages.h"

namespace millrace::api {

inline constexpr std::size_t kMaxLiveNames = 1024;
inline constexpr std::size_t kMaxLiveMetrics = 64;
inline constexpr std::size_t kMaxLiveLogLines = 150;  // of all processes, the newest ones

// Of one process, which has these stages.
struct LiveLog {
  std::string stage;  // "server", "scheduler", "encode, detokenize"
  std::vector<LogTailLine> lines;
};

struct LiveFacts {
  int64_t period_ms = 0;
  std::size_t clients = 0;
  const std::vector<LiveLog>* log = nullptr;  // where there are trusted clients
};

struct LiveEvent {
  std::string shown;    // to every client
  std::string trusted;  // the same and more, to trusted ones; "" where there are none
};

// `replies`: of all stages to kShowState.
LiveEvent live_event(ApiContext& context, const std::vector<wire::AdminReply>& replies, const LiveFacts& facts);

}  // namespace millrace::api
