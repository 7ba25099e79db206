#include "app/router/model_pool.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace millrace {

const char* model_state_name(ModelState state) {
  switch (state) {
    case ModelState::kUnloaded:
      return "unloaded";
    case ModelState::kLoading:
      return "loading";
    case ModelState::kLoaded:
      return "loaded";
    case ModelState::kUnloading:
      return "unloading";
    case ModelState::kFailed:
      return "failed";
  }
  return "unloaded";
}

ModelPool::ModelPool(std::vector<ServedModel> models, ModelPoolOptions options, StartModel start)
    : models_(std::move(models)), options_(std::move(options)), start_(std::move(start)), slots_(models_.size()) {
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    slots_[i].status.name = models_[i].name;
    slots_[i].status.pinned = slots_[i].wanted = models_[i].pinned;
  }
}

// With the lock held.
ModelPool::Use ModelPool::use_of(Slot& slot) {
  ++slot.status.running;
  slot.just_used = true;
  const auto index = static_cast<std::size_t>(&slot - slots_.data());
  return {slot.process->socket(),
          std::shared_ptr<void>(this, [index](void* pool) { static_cast<ModelPool*>(pool)->release(index); })};
}

void ModelPool::release(std::size_t index) {
  const std::lock_guard lock(mutex_);
  --slots_[index].status.running;
  slots_[index].just_used = true;
}

void ModelPool::acquire(const ServedModel& model, IsGone gone, OnReady on_ready) {
  Result<Use> answer = Status(StatusCode::kUnavailable, "the server stops");
  {
    const std::lock_guard lock(mutex_);
    Slot& slot = slot_of(model);
    if (!shut_down_ && slot.status.state == ModelState::kLoaded) {
      answer = use_of(slot);
    } else if (!shut_down_ && slot.status.state == ModelState::kFailed) {
      answer = error(StatusCode::kUnavailable, "the model '{}' does not load: {}", model.name, slot.status.error);
    } else if (!shut_down_ && slot.waiters.size() >= kMaxWaitingForModel) {
      answer = error(StatusCode::kResourceExhausted, "{} requests wait for the model '{}' already; wanted at most {}",
                     slot.waiters.size(), model.name, kMaxWaitingForModel);
    } else if (!shut_down_) {
      slot.waiters.push_back({std::move(gone), std::move(on_ready)});
      return;
    }
  }
  on_ready(std::move(answer));
}

void ModelPool::load(const ServedModel& model) {
  const std::lock_guard lock(mutex_);
  Slot& slot = slot_of(model);
  if (slot.status.state == ModelState::kFailed) slot.status.state = ModelState::kUnloaded;  // a person asks
  if (slot.status.state != ModelState::kLoaded && slot.status.state != ModelState::kLoading) slot.wanted = true;
}

bool ModelPool::unload(const ServedModel& model) {
  const std::lock_guard lock(mutex_);
  Slot& slot = slot_of(model);
  slot.wanted = false;
  if (slot.status.state != ModelState::kLoaded && slot.status.state != ModelState::kLoading) return false;
  give_up(slot, slot.status.unloads);
  return true;
}

void ModelPool::set_progress(const std::string& name, double progress, const std::string& message) {
  const std::lock_guard lock(mutex_);
  for (Slot& slot : slots_) {
    if (slot.status.name != name || slot.status.state != ModelState::kLoading) continue;
    slot.status.progress = progress;
    slot.status.message = message;
  }
}

std::vector<ModelStatus> ModelPool::statuses() const {
  const std::lock_guard lock(mutex_);
  std::vector<ModelStatus> out;
  for (const Slot& slot : slots_) {
    out.push_back(slot.status);
    out.back().waiting = static_cast<int>(slot.waiters.size());
    if (slot.process) out.back().socket = slot.process->socket();
  }
  return out;
}

bool ModelPool::has_processes() const {
  const std::lock_guard lock(mutex_);
  return std::any_of(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.process != nullptr; });
}

// Its process ends when its requests have, or at its limit for that.
void ModelPool::give_up(Slot& slot, int64_t& count) {
  ++count;
  slot.status.state = ModelState::kUnloading;
  slot.process->terminate();
}

void ModelPool::refuse_waiters(Slot& slot, const Status& why, Calls& calls) {
  for (Waiter& waiter : slot.waiters) {
    calls.emplace_back([on_ready = std::move(waiter.on_ready), why] { on_ready(why); });
  }
  slot.waiters.clear();
}

void ModelPool::loaded(Slot& slot, int64_t now_ms, Calls& calls) {
  slot.status.state = ModelState::kLoaded;
  slot.status.error.clear();
  slot.status.progress = 1;
  slot.status.message.clear();
  slot.used_ms = now_ms;
  ++slot.status.loads;
  LOG_INFO("the model '{}' is loaded", slot.status.name);
  for (Waiter& waiter : slot.waiters) {
    if (waiter.gone && waiter.gone()) continue;
    calls.emplace_back([on_ready = std::move(waiter.on_ready), use = use_of(slot)] { on_ready(use); });
  }
  slot.waiters.clear();
}

void ModelPool::ended(Slot& slot, int64_t now_ms, Calls& calls) {
  const std::string why = slot.process->error();
  slot.process.reset();
  slot.status.progress = 0;
  const ModelState before = std::exchange(slot.status.state, ModelState::kUnloaded);
  if (before == ModelState::kUnloading) {
    LOG_INFO("the model '{}' is unloaded", slot.status.name);
  } else if (before == ModelState::kLoaded) {
    LOG_ERROR("the model '{}' stopped: {}; the next request loads it again", slot.status.name, why);
    slot.wanted |= slot.status.pinned;
  } else {
    slot.status.state = ModelState::kFailed;
    slot.status.error = why;
    slot.failed_ms = now_ms;
    ++slot.status.failures;
    LOG_ERROR("the model '{}' does not load: {}", slot.status.name, why);
    refuse_waiters(slot, error(StatusCode::kUnavailable, "the model '{}' does not load: {}", slot.status.name, why),
                   calls);
  }
}

// What has waited too long, or whose client has left.
void ModelPool::expire(Slot& slot, int64_t now_ms, Calls& calls) {
  std::deque<Waiter> kept;
  for (Waiter& waiter : slot.waiters) {
    if (waiter.since_ms < 0) waiter.since_ms = now_ms;
    if (waiter.gone && waiter.gone()) continue;
    if (now_ms - waiter.since_ms < options_.wait_ms) {
      kept.push_back(std::move(waiter));
      continue;
    }
    const Status late = error(StatusCode::kDeadline, "the model '{}' was not loaded within {} s", slot.status.name,
                              options_.wait_ms / 1000);
    calls.emplace_back([on_ready = std::move(waiter.on_ready), late] { on_ready(late); });
  }
  slot.waiters = std::move(kept);
}

void ModelPool::look_at(std::size_t index, int64_t now_ms, Calls& calls) {
  Slot& slot = slots_[index];
  if (std::exchange(slot.just_used, false) || slot.status.running > 0) slot.used_ms = now_ms;
  expire(slot, now_ms, calls);
  if (slot.process) {
    const ModelProcess::State state = slot.process->poll();
    if (state == ModelProcess::State::kEnded) {
      ended(slot, now_ms, calls);
    } else if (state == ModelProcess::State::kReady && slot.status.state == ModelState::kLoading) {
      loaded(slot, now_ms, calls);
    }
  }
  if (slot.status.state == ModelState::kFailed && now_ms - slot.failed_ms >= kRetryPauseMs) {
    slot.status.state = ModelState::kUnloaded;
  }
  const bool idle = slot.status.state == ModelState::kLoaded && slot.status.running == 0 && !slot.status.pinned;
  if (idle && options_.ttl_ms > 0 && now_ms - slot.used_ms >= options_.ttl_ms) {
    LOG_INFO("the model '{}' has had no request for {} s: it is unloaded", slot.status.name, options_.ttl_ms / 1000);
    give_up(slot, slot.status.expirations);
  }
}

bool ModelPool::has_space(const ServedModel& model) const {
  uint64_t used = 0;
  int count = 0;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (!slots_[i].process) continue;
    ++count;
    used += models_[i].bytes;
  }
  if (count == 0) return true;  // it is tried alone, whatever the estimate
  if (options_.most_loaded > 0 && count >= options_.most_loaded) return false;
  const auto scaled = [](uint64_t bytes) { return static_cast<uint64_t>(static_cast<double>(bytes) * kMemoryFactor); };
  if (options_.memory_bytes > 0) return scaled(used + model.bytes) <= options_.memory_bytes;
  return !options_.available_bytes || scaled(model.bytes) <= options_.available_bytes();
}

ModelPool::Slot* ModelPool::least_recently_used() {
  Slot* found = nullptr;
  for (Slot& slot : slots_) {
    if (slot.status.state != ModelState::kLoaded || slot.status.running > 0 || slot.status.pinned) continue;
    if (found == nullptr || slot.used_ms < found->used_ms) found = &slot;
  }
  return found;
}

// The model whose request has waited longest, if there is space for it or can be.
void ModelPool::load_next(int64_t now_ms, Calls& calls) {
  Slot* next = nullptr;
  for (Slot& slot : slots_) {
    if (slot.process && slot.status.state != ModelState::kLoaded) return;  // it loads, or it still goes
    if (slot.status.state != ModelState::kUnloaded || (slot.waiters.empty() && !slot.wanted)) continue;
    const auto since = [](const Slot& s) { return s.waiters.empty() ? INT64_MAX : s.waiters.front().since_ms; };
    if (next == nullptr || since(slot) < since(*next)) next = &slot;
  }
  if (next == nullptr) return;
  const ServedModel& model = models_[static_cast<std::size_t>(next - slots_.data())];
  if (!has_space(model)) {
    if (Slot* const victim = least_recently_used()) {
      LOG_INFO("the model '{}' is unloaded: '{}' needs its place", victim->status.name, model.name);
      give_up(*victim, victim->status.evictions);
    }
    return;
  }
  next->wanted = false;
  LOG_INFO("the model '{}' loads", model.name);
  auto process = start_(model);
  if (process.ok()) {
    next->process = std::move(process).value();
    next->status.state = ModelState::kLoading;
    return;
  }
  next->status.state = ModelState::kFailed;
  next->status.error = process.status().message();
  next->failed_ms = now_ms;
  ++next->status.failures;
  refuse_waiters(*next, process.status(), calls);
}

void ModelPool::tick(int64_t now_ms) {
  Calls calls;
  {
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < slots_.size(); ++i) look_at(i, now_ms, calls);
    if (!shut_down_) load_next(now_ms, calls);
  }
  for (const auto& call : calls) call();
}

void ModelPool::shut_down() {
  Calls calls;
  {
    const std::lock_guard lock(mutex_);
    shut_down_ = true;
    for (Slot& slot : slots_) {
      slot.wanted = false;
      refuse_waiters(slot, Status(StatusCode::kUnavailable, "the server stops"), calls);
      if (!slot.process) continue;
      slot.status.state = ModelState::kUnloading;
      slot.process->terminate();
    }
  }
  for (const auto& call : calls) call();
}

}  // namespace millrace
