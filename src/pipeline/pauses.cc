#include "pipeline/pauses.h"

#include <fmt/format.h>

#include <utility>

#include "base/log.h"
#include "pipeline/admin_replies.h"

namespace millrace {
namespace {

using Replies = std::vector<wire::AdminReply>;

Status no_stage() { return error(StatusCode::kUnsupported, "the pipeline has no stage that generates"); }

Status superseded(const char* by) {
  return error(StatusCode::kCancelled, "another {} came before the requests in flight had ended", by);
}

void report(const Replies& replies) {
  if (const Status status = first_failure(replies); !status.ok()) LOG_ERROR("pause: {}", status.to_string());
}

}  // namespace

void Pauses::set_paused(bool paused, PipelineCommand command, Done done) {
  if (stages_.empty()) return done(no_stage());
  command.stages = stages_;
  command.timeout_ms = kPauseMs;
  const wire::InFlightPolicy policy = command.policy;
  {
    const std::lock_guard lock(mutex_);
    ++under_way_;
    next_paused_ = paused;
    next_policy_ = policy;
  }
  env_.command(std::move(command), [this, paused, policy, done = std::move(done)](const Replies& replies) {
    const Status status = first_failure(replies);
    std::set<Joined> joined;
    {
      const std::lock_guard lock(mutex_);
      CHECK(under_way_ > 0);
      // Where one has refused, nothing counts as paused, and the next pause() asks all of them again. One that is only
      // gone is paused when it joins, see on_joined().
      if (status.ok()) {
        paused_ = paused;
        policy_ = policy;
      }
      if (--under_way_ == 0) joined = std::exchange(joined_, {});
    }
    // The command may have missed them, and what on_joined() sent was of a state that may not have been reached.
    for (const auto& [stage, replica] : joined) send_state(stage, replica);
    done(status);
  });
}

void Pauses::pause(wire::InFlightPolicy policy, Done done) {
  supersede("pause");
  PipelineCommand command{.action = wire::AdminAction::kPause};
  command.policy = policy;
  set_paused(true, std::move(command), std::move(done));
}

void Pauses::resume(Done done) {
  supersede("resume");
  set_paused(false, PipelineCommand{.action = wire::AdminAction::kContinue}, std::move(done));
}

void Pauses::pause_when_idle(Done done) {
  if (stages_.empty()) return done(no_stage());
  supersede("pause");
  const std::size_t in_flight = env_.in_flight();
  // They never end while they stand still, so the wait could only run into its limit.
  if (state().paused && in_flight > 0) {
    return done(error(StatusCode::kConflict,
                      "{} requests in flight stand still in another pause; wanted none, or a resume first", in_flight));
  }
  Done before;
  {
    const std::lock_guard lock(mutex_);
    // Another thread's call may have come since supersede().
    before = std::exchange(waiting_, std::move(done));
    ++waits_;
    // The clock is the tick's.
    by_ms_ = 0;
  }
  update_hold();  // the next tick looks whether all have ended
  if (before) before(superseded("pause"));
}

void Pauses::supersede(const char* by) {
  Done waiting;
  {
    const std::lock_guard lock(mutex_);
    waiting = std::exchange(waiting_, nullptr);
  }
  if (!waiting) return;
  update_hold();
  waiting(superseded(by));
}

// After each change of what is looked at here. Of two threads that come at once the second one to enter finds the
// newest state, so the last hold() is the present one.
void Pauses::update_hold() {
  const std::lock_guard hold_lock(hold_mutex_);
  bool held = false;
  {
    const std::lock_guard lock(mutex_);
    held = waiting_ != nullptr || sent_ > 0;
  }
  if (std::exchange(held_, held) != held) env_.hold(held);
}

// Held requests go on to their stages once these are paused, and wait there as in every pause.
void Pauses::tick(int64_t now_ms) {
  int64_t by_ms = 0;
  uint64_t wait = 0;
  {
    const std::lock_guard lock(mutex_);
    if (!waiting_) return;
    if (by_ms_ == 0) by_ms_ = now_ms + kPauseWaitMs;
    by_ms = by_ms_;
    wait = waits_;
  }
  // The thread that began the wait may not have come to it, and no request may begin behind the look.
  update_hold();
  const std::size_t in_flight = env_.in_flight();
  if (in_flight > 0 && now_ms < by_ms) return;
  Done done;
  {
    const std::lock_guard lock(mutex_);
    if (waits_ != wait) return;  // the number is of an earlier wait
    done = std::exchange(waiting_, nullptr);
    if (done && in_flight == 0) ++sent_;
  }
  if (!done) return;  // it was superseded
  if (in_flight > 0) {
    update_hold();
    return done(error(StatusCode::kDeadline, "{} requests are still in flight after {} s, the limit: nothing is paused",
                      in_flight, kPauseWaitMs / 1000));
  }
  PipelineCommand command{.action = wire::AdminAction::kPause};
  set_paused(true, std::move(command), [this, done = std::move(done)](const Status& status) {
    {
      const std::lock_guard lock(mutex_);
      CHECK(sent_ > 0);
      --sent_;
    }
    update_hold();
    done(status);
  });
}

void Pauses::on_joined(const std::string& stage, uint32_t replica) {
  {
    const std::lock_guard lock(mutex_);
    if (under_way_ > 0) joined_.emplace(stage, replica);
    if (!(under_way_ > 0 ? next_paused_ : paused_)) return;  // one that has just started runs
  }
  send_state(stage, replica);
}

void Pauses::send_state(const std::string& stage, uint32_t replica) {
  PipelineCommand command{.stages = {stage}, .timeout_ms = kPauseJoinedMs};
  command.replica = replica;
  {
    const std::lock_guard lock(mutex_);
    const bool reaching = under_way_ > 0;
    command.action = (reaching ? next_paused_ : paused_) ? wire::AdminAction::kPause : wire::AdminAction::kContinue;
    command.policy = reaching ? next_policy_ : policy_;
  }
  env_.command(std::move(command), report);
}

Pauses::State Pauses::state() const {
  const std::lock_guard lock(mutex_);
  return {.paused = paused_, .pausing = waiting_ != nullptr};
}

}  // namespace millrace
