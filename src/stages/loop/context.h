// LoopContext: what the parts of one stage loop share: its configuration and environment, the step's time, what is due,
// and the counters. A part calls those that it is made of and returns what happened; a Status that is not OK is the
// reason why the request of that call has to end, and the loop ends it.
//
// Owner: a StageLoop, which outlives its parts. Thread safety: the loop's thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "stages/loop/limits.h"
#include "stages/loop/request.h"
#include "stages/stage_loop_config.h"
#include "stages/stage_spans.h"

namespace millrace::loop {

// The message was not sent, and may be later.
inline bool is_refused_for_now(const Status& status) {
  return status.code() == StatusCode::kResourceExhausted || status.code() == StatusCode::kUnavailable;
}

struct LoopContext {
  LoopContext(StageLoopConfig the_config, StageLoopEnv the_env)
      : config(std::move(the_config)),
        env(std::move(the_env)),
        targets(config.targets()),
        spans(env.spans, config.self.stage, config.spec.worker, config.self.replica),
        book(env.connect) {}
  LoopContext(const LoopContext&) = delete;

  StageLoopConfig config;  // config.self.incarnation grows with each lease that is lost
  StageLoopEnv env;
  const std::vector<std::string> targets;  // config.targets(), which is asked for with each request that ends
  const StageSpans spans;
  StageLoopCounters counters;
  AddressBook book;
  bool is_member = false;
  bool is_draining = false;    // no new request
  uint64_t session = 0;        // of the coordinator that the loop is a member of, or was last
  int64_t now_ms = 0;          // of this step
  int64_t retry_ms = kNoWake;  // when what was refused is tried again
  bool more_to_do = false;     // this step has made work for one more round

  const std::string& stage() const { return config.self.stage; }
  void retry_by(int64_t time_ms) { retry_ms = std::min(retry_ms, time_ms); }
  void retry_soon() { retry_by(now_ms + kRetryMs); }
  wire::Origin origin() const {
    return {.session = session,
            .stage = config.self.stage,
            .replica = config.self.replica,
            .incarnation = config.self.incarnation};
  }
  // Sends one message, whose `from` it fills, or leaves it as it is. kResourceExhausted, and kUnavailable of a stage:
  // not now.
  Status send(const Receiver& to, wire::Message& message);
  // Distinguishes the visits of one request to several stages of one process.
  uint64_t trace_id(ReqId id) const { return mix_bits(id.value ^ hash_name(config.self.stage)); }
};

}  // namespace millrace::loop
