// Lease: the membership of a stage loop in the session of a coordinator. It registers every kRegisterMs until a Welcome
// comes; from then on heartbeats keep the lease. When no heartbeat could leave for longer than the lease (the
// coordinator is away), or nothing came from the coordinator for kCoordinatorSilentLeases, the lease is lost, and the
// loop joins again as a new incarnation.
//
// A loop that did not run for a while (the process was stopped, the machine was suspended or busy) cannot know whether
// it was missed: the coordinator may have stood still with it. That time counts for nothing, a heartbeat leaves at
// once, and the coordinator answers one that was replaced meanwhile with a refusal. Until that comes, what such a
// zombie sends bears its old incarnation, which every receiver ignores (loop/peer_gate.h, Membership::current_slot).
//
// Owner: a StageLoop, which drops its requests when the lease is lost. Thread safety: the loop's thread.
#pragma once

#include <cstdint>
#include <string>

#include "base/cpu_wait.h"
#include "stages/loop/context.h"

namespace millrace::loop {

class Lease {
 public:
  explicit Lease(LoopContext& context) : context_(context) {}

  enum class Answer : uint8_t { kNothing, kJoined, kRefused, kLost };
  // kRefused: for good, for the reason in `why`. kLost: the coordinator wants a new incarnation.
  Answer on_welcome(wire::Welcome& message, Status& why);
  void coordinator_seen() { last_seen_ms_ = context_.now_ms; }
  bool never_joined() const { return context_.session == 0; }

  // At the begin of every step, before lost(): leaves out the time in which the loop did not run, of the lease and of
  // the worker's standing.
  void compensate_pause();
  // Before each heartbeat: leaves out the time in which a thread of the process was ready and had no CPU, of the
  // worker's standing. A machine with too much to do is slow, not stalled.
  void compensate_cpu_wait();
  // Why the lease is lost by now; nullptr: it holds, or there is none.
  const char* lost() const;
  // From now on this loop is no member; it registers as the next incarnation.
  void lose();

  bool is_due() const { return context_.now_ms >= next_ms_; }  // a registration, or a heartbeat
  int64_t due_ms() const { return next_ms_; }
  void report_soon() { next_ms_ = context_.now_ms; }
  void send_registration();
  void heartbeat_sent(bool taken);  // by the coordinator's outbox

 private:
  void warn_of_silence();

  LoopContext& context_;
  int64_t lease_ms_ = kDefaultLeaseMs;
  int64_t stepped_ms_ = 0;       // the last step
  CpuWait cpu_wait_;             // since the heartbeat before, while the worker stands still
  int64_t last_sent_ms_ = 0;     // a heartbeat that the outbox took
  int64_t last_seen_ms_ = 0;     // a message of the coordinator
  int64_t next_ms_ = 0;          // Register or StageStatus
  int64_t next_warning_ms_ = 0;  // of a coordinator that does not answer; 0: it was not asked yet
  bool logged_wait_ = false;     // that another incarnation holds this replica's lease
  bool warned_ = false;          // so that joining is worth a line of the log
  std::string last_error_;       // why a registration has no answer, as far as is known
};

}  // namespace millrace::loop
