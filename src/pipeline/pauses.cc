#include "pipeline/pauses.h"

#include <fmt/format.h>

#include <algorithm>
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

// Too many commands are open, or wait for a replica that loads.
bool may_be_repeated(const Replies& replies) {
  return std::any_of(replies.begin(), replies.end(),
                     [](const auto& reply) { return reply.code == StatusCode::kResourceExhausted; });
}

}  // namespace

void Pauses::set_paused(bool paused, PipelineCommand command, Done done) {
  if (stages_.empty()) return done(no_stage());
  command.stages = stages_;
  command.timeout_ms = kPauseMs;
  Wanted wanted{.paused = paused, .policy = command.policy};
  {
    const std::lock_guard lock(mutex_);
    wanted.number = next_.number + 1;
    next_ = wanted;
    ++under_way_;
  }
  env_.command(std::move(command), [this, wanted, done = std::move(done)](const Replies& replies) {
    on_replies(wanted, replies);
    done(first_failure(replies));
  });
}

void Pauses::on_replies(const Wanted& wanted, const Replies& replies) {
  const bool ok = first_failure(replies).ok();
  std::set<Target> targets;
  {
    const std::lock_guard lock(mutex_);
    CHECK(under_way_ > 0);
    const bool sent = !was_refused(replies);
    // Where one has not paused, nothing counts as paused. One that is only gone is paused when it joins, see
    // on_joined(). The replies to a later command may have come before.
    if ((ok || (sent && !wanted.paused)) && wanted.number > state_.number) state_ = wanted;
    failed_ = failed_ || (sent && !ok);
    if (--under_way_ > 0) return;
    // The command may have missed them, and what on_joined() sent was of a state that may not have been reached.
    targets = std::exchange(joined_, {});
    // Some replicas may have paused, or have refused to continue. In a pause of before all of them still are.
    if (std::exchange(failed_, false) && !state_.paused) {
      for (const std::string& stage : stages_) targets.emplace(stage, std::nullopt);
    }
  }
  for (const Target& target : targets) send_state(target);
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
  send_unsent();
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
    if (!target_locked().paused) return;  // one that has just started runs
  }
  send_state({stage, replica});
}

void Pauses::send_state(const Target& target) {
  PipelineCommand command{.stages = {target.first}, .timeout_ms = target.second ? kPauseJoinedMs : kPauseMs};
  command.replica = target.second;
  {
    const std::lock_guard lock(mutex_);
    const Wanted wanted = target_locked();
    command.action = wanted.paused ? wire::AdminAction::kPause : wire::AdminAction::kContinue;
    // A replica that has just started has no requests; those of the others are not ended by a repeat.
    if (target.second) command.policy = wanted.policy;
  }
  env_.command(std::move(command), [this, target](const Replies& replies) {
    if (may_be_repeated(replies)) {
      const std::lock_guard lock(mutex_);
      unsent_.insert(target);
    } else if (const Status status = first_failure(replies); !status.ok()) {
      LOG_ERROR("pause: {}", status.to_string());
    }
  });
}

void Pauses::send_unsent() {
  std::set<Target> targets;
  {
    const std::lock_guard lock(mutex_);
    targets = std::exchange(unsent_, {});
  }
  for (const Target& target : targets) send_state(target);
}

Pauses::State Pauses::state() const {
  const std::lock_guard lock(mutex_);
  return {.paused = state_.paused, .pausing = waiting_ != nullptr};
}

}  // namespace millrace
