// The front's view of the stages: who was heard, who serves, who hangs.
#include <algorithm>

#include "base/log.h"
#include "stages/front.h"

namespace millrace {

void Front::connect_scheduler(std::shared_ptr<Outbox> scheduler, uint64_t incarnation, int replica) {
  CHECK(replica >= 0 && replica < options_.replicas);
  std::lock_guard lock(mutex_);
  Replica& to = replicas_[static_cast<std::size_t>(replica)];
  to.outbox = std::move(scheduler);
  to.up = to.outbox != nullptr;
  to.unsent_aborts.clear();
  router_.forget(replica);
  stages_[to.name] = {.expected = incarnation, .since_ms = monotonic_ms()};
}

void Front::expect_stage(const std::string& stage, uint64_t incarnation) {
  std::lock_guard lock(mutex_);
  stages_[stage] = {.expected = incarnation, .since_ms = monotonic_ms()};
}

void Front::await_stage(const std::string& stage, const std::string& why) {
  std::lock_guard lock(mutex_);
  stages_[stage].status = {.stage = stage, .state = wire::StageState::kLoading, .message = why};
}

void Front::stage_down(const std::string& stage, const std::string& reason) {
  std::optional<int> replica;
  {
    std::lock_guard lock(mutex_);
    StageView& view = stages_[stage];
    view.heard_ms = 0;
    view.expected = 0;  // incarnations count from 1: a late heartbeat must not raise the dead
    view.status = {.stage = stage, .state = wire::StageState::kFailed, .message = reason};
    for (std::size_t i = 0; i < replicas_.size(); ++i) {
      if (replicas_[i].name != stage) continue;
      replicas_[i].up = false;
      replica = static_cast<int>(i);
    }
  }
  answer_for(stage, reason);
  const Status status(StatusCode::kUnavailable, fmt::format("the {} stopped: {}", stage, reason));
  end_all(status, replicas_.size() > 1 ? replica : std::nullopt);
}

void Front::hear(wire::StageStatus status) {
  std::lock_guard lock(mutex_);
  auto found = stages_.find(status.stage);
  if (found == stages_.end() || found->second.expected != status.incarnation) return;
  StageView& view = found->second;
  const int64_t now_ms = monotonic_ms();
  if (view.heard_ms == 0 || view.status.state != status.state) view.since_ms = now_ms;
  view.heard_ms = now_ms;
  if (status.state == wire::StageState::kReady) were_ready_.insert(status.stage);
  view.status = std::move(status);
}

bool Front::was_ready(const std::string& stage) const {
  std::lock_guard lock(mutex_);
  return were_ready_.contains(stage);
}

// With the lock held. Why a stage does not serve; empty: it does.
std::string Front::why_silent(const std::string& name, const StageView& view) const {
  const wire::StageStatus& status = view.status;
  if (view.heard_ms == 0) return fmt::format("{}: {}", name, status.message.empty() ? "starting" : status.message);
  if (status.state == wire::StageState::kLoading) {
    return fmt::format("{}: {} {:.0f}%", name, status.message, status.progress * 100);
  }
  const char* more = status.message.empty() ? "" : ", ";
  if (status.state != wire::StageState::kReady) {
    return fmt::format("{}: {}{}{}", name, wire::stage_state_name(status.state), more, status.message);
  }
  const int64_t silent_ms = monotonic_ms() - view.heard_ms;
  if (silent_ms > kStageSilentMs) return fmt::format("{}: stalled, silent for {} ms", name, silent_ms);
  return "";
}

bool Front::serves(const Replica& replica) const {
  return replica.up && why_silent(replica.name, stages_.at(replica.name)).empty();
}

std::vector<bool> Front::serving() const {
  std::vector<bool> out;
  for (const Replica& replica : replicas_) out.push_back(serves(replica));
  return out;
}

// With the lock held. Empty: ready, which takes the detokenizer and one scheduler.
std::string Front::why_not_ready() const {
  if (draining_.load()) return "shutting down";
  const std::string reason = why_silent("detokenizer", stages_.at("detokenizer"));
  const auto up = serving();
  if (reason.empty() && std::find(up.begin(), up.end(), true) != up.end()) return "";
  for (const auto& [name, view] : stages_) {
    if (std::string why = why_silent(name, view); !why.empty()) return why;
  }
  return "starting";
}

Health Front::health() const {
  std::lock_guard lock(mutex_);
  Health health;
  health.reason = why_not_ready();
  health.ready = health.reason.empty();
  health.draining = draining_.load();
  for (const auto& [name, view] : stages_) {
    wire::StageStatus& status = health.stages.emplace_back(view.status);
    status.stage = name;
    const std::string why = why_silent(name, view);
    if (why.empty()) continue;
    // Ready, but not with all: who is down is said all the same.
    if (health.ready) health.reason += (health.reason.empty() ? "" : "; ") + why;
    if (status.state == wire::StageState::kReady) {
      status.state = wire::StageState::kStalled;
      status.message = why;
    }
  }
  return health;
}

// A stage whose state is stalled, or that says nothing, for restart_after_s. Called without the lock.
void Front::report_hung() {
  if (options_.restart_after_s <= 0) return;
  const int64_t limit_ms = options_.restart_after_s * 1000, now_ms = monotonic_ms();
  struct One {
    std::string name;
    uint64_t incarnation;
    std::string how;
  };
  std::vector<One> hung;
  {
    std::lock_guard lock(mutex_);
    for (auto& [name, view] : stages_) {
      if (view.expected == 0 || view.told_hung) continue;
      const int64_t silent_ms = now_ms - std::max(view.heard_ms, view.heard_ms == 0 ? view.since_ms : 0);
      const bool stalled = view.heard_ms != 0 && view.status.state == wire::StageState::kStalled;
      const int64_t stalled_ms = stalled ? now_ms - view.since_ms : 0;
      if (std::max(silent_ms, stalled_ms) < limit_ms) continue;
      view.told_hung = true;
      hung.push_back({name, view.expected,
                      fmt::format("{} for {} s", stalled_ms >= limit_ms ? "stalled" : "silent",
                                  std::max(silent_ms, stalled_ms) / 1000)});
    }
  }
  for (const auto& [name, incarnation, how] : hung) {
    LOG_ERROR("the {} hangs: {}", name, how);
    if (hung_) hung_(name, incarnation, how);
  }
}

}  // namespace millrace
