#include "app/router/model_pool.h"

#include <algorithm>
#include <set>
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
    : options_(std::move(options)), start_(std::move(start)) {
  for (ServedModel& model : models) add_slot(std::move(model));
  list_anew();
}

void ModelPool::add_slot(ServedModel model) {
  SlotPtr slot = std::make_shared<Slot>();
  slot->status.name = model.name;
  slot->status.pinned = slot->wanted = model.pinned;
  slot->model = std::move(model);
  slots_.push_back(std::move(slot));
}

// With the lock held, as the next ones.
void ModelPool::list_anew() {
  std::vector<ServedModel> all;
  for (const SlotPtr& slot : slots_) all.push_back(slot->model);
  list_ = std::make_shared<const std::vector<ServedModel>>(std::move(all));
}

ModelPool::SlotPtr ModelPool::slot_of(const std::string& model) const {
  for (const SlotPtr& slot : slots_) {
    if (slot->model.name == model) return slot;
  }
  return nullptr;
}

ModelPool::Use ModelPool::use_of(const SlotPtr& slot) {
  ++slot->status.running;
  slot->just_used = true;
  return {slot->process->socket(),
          std::shared_ptr<void>(this, [slot](void* pool) { static_cast<ModelPool*>(pool)->release(*slot); })};
}

void ModelPool::release(Slot& slot) {
  const std::lock_guard lock(mutex_);
  --slot.status.running;
  slot.just_used = true;
}

std::shared_ptr<const std::vector<ServedModel>> ModelPool::models() const {
  const std::lock_guard lock(mutex_);
  return list_;
}

Status ModelPool::add(ServedModel model) {
  const std::lock_guard lock(mutex_);
  if (find_model(*list_, model.name) != nullptr)
    return error(StatusCode::kConflict, "there is a '{}' already", model.name);
  if (slots_.size() >= kMaxModels) {
    return error(StatusCode::kResourceExhausted, "there are {} models, the limit", slots_.size());
  }
  std::erase_if(model.aliases, [this](const std::string& alias) { return find_model(*list_, alias) != nullptr; });
  add_slot(std::move(model));
  list_anew();
  return ok_status();
}

Status ModelPool::add_alias(const std::string& model, const std::string& alias) {
  const std::lock_guard lock(mutex_);
  if (find_model(*list_, alias) != nullptr) return error(StatusCode::kConflict, "there is a '{}' already", alias);
  const SlotPtr slot = slot_of(model);
  if (!slot) return error(StatusCode::kNotFound, "there is no model '{}'", model);
  if (slot->model.aliases.size() >= kMaxAliases) {
    return error(StatusCode::kResourceExhausted, "'{}' has {} further names, the limit", model, kMaxAliases);
  }
  slot->model.aliases.push_back(alias);
  list_anew();
  return ok_status();
}

Status ModelPool::remove_alias(const std::string& alias) {
  const std::lock_guard lock(mutex_);
  for (const SlotPtr& slot : slots_) {
    if (std::erase(slot->model.aliases, alias) != 0) return list_anew(), ok_status();
  }
  return error(StatusCode::kNotFound, "there is no model '{}'", alias);
}

Status ModelPool::remove(const std::vector<std::string>& models) {
  const std::lock_guard lock(mutex_);
  std::set<SlotPtr> gone;
  for (const std::string& name : models) {
    const SlotPtr slot = slot_of(name);
    if (!slot) return error(StatusCode::kNotFound, "there is no model '{}'", name);
    if (slot->process || !slot->waiters.empty()) {
      return error(StatusCode::kConflict, "the model '{}' is {}; wanted it unloaded: by /models/unload", name,
                   model_state_name(slot->status.state));
    }
    gone.insert(slot);
  }
  std::erase_if(slots_, [&gone](const SlotPtr& slot) { return gone.contains(slot); });
  list_anew();
  return ok_status();
}

void ModelPool::acquire(const std::string& model, IsGone gone, OnReady on_ready) {
  Result<Use> answer = Status(StatusCode::kUnavailable, "the server stops");
  {
    const std::lock_guard lock(mutex_);
    const SlotPtr slot = slot_of(model);
    if (!slot) {
      answer = error(StatusCode::kNotFound, "the model '{}' is gone", model);
    } else if (!shut_down_ && slot->status.state == ModelState::kLoaded) {
      answer = use_of(slot);
    } else if (!shut_down_ && slot->status.state == ModelState::kFailed) {
      answer = error(StatusCode::kUnavailable, "the model '{}' does not load: {}", model, slot->status.error);
    } else if (!shut_down_ && slot->waiters.size() >= kMaxWaitingForModel) {
      answer = error(StatusCode::kResourceExhausted, "{} requests wait for the model '{}' already; wanted at most {}",
                     slot->waiters.size(), model, kMaxWaitingForModel);
    } else if (!shut_down_) {
      slot->waiters.push_back({std::move(gone), std::move(on_ready)});
      return;
    }
  }
  on_ready(std::move(answer));
}

void ModelPool::load(const std::string& model) {
  const std::lock_guard lock(mutex_);
  const SlotPtr slot = slot_of(model);
  if (!slot) return;
  if (slot->status.state == ModelState::kFailed) slot->status.state = ModelState::kUnloaded;  // a person asks
  if (slot->status.state != ModelState::kLoaded && slot->status.state != ModelState::kLoading) slot->wanted = true;
}

bool ModelPool::unload(const std::string& model) {
  const std::lock_guard lock(mutex_);
  const SlotPtr slot = slot_of(model);
  if (!slot) return false;
  slot->wanted = false;
  if (slot->status.state != ModelState::kLoaded && slot->status.state != ModelState::kLoading) return false;
  give_up(*slot, slot->status.unloads);
  return true;
}

void ModelPool::set_progress(const std::string& name, double progress, const std::string& message) {
  const std::lock_guard lock(mutex_);
  const SlotPtr slot = slot_of(name);
  if (!slot || slot->status.state != ModelState::kLoading) return;
  slot->status.progress = progress;
  slot->status.message = message;
}

ModelStatus ModelPool::status_of(const Slot& slot) {
  ModelStatus out = slot.status;
  out.waiting = static_cast<int>(slot.waiters.size());
  if (slot.process) out.socket = slot.process->socket();
  return out;
}

ModelStatus ModelPool::status(const std::string& model) const {
  const std::lock_guard lock(mutex_);
  const SlotPtr slot = slot_of(model);
  return slot ? status_of(*slot) : ModelStatus{.name = model};
}

ModelPool::Now ModelPool::now() const {
  const std::lock_guard lock(mutex_);
  Now out{.models = list_, .statuses = {}};
  for (const SlotPtr& slot : slots_) out.statuses.push_back(status_of(*slot));
  return out;
}

std::vector<ModelStatus> ModelPool::statuses() const { return now().statuses; }

bool ModelPool::has_processes() const {
  const std::lock_guard lock(mutex_);
  return std::any_of(slots_.begin(), slots_.end(), [](const SlotPtr& slot) { return slot->process != nullptr; });
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

void ModelPool::loaded(const SlotPtr& slot, int64_t now_ms, Calls& calls) {
  slot->status.state = ModelState::kLoaded;
  slot->status.error.clear();
  slot->status.progress = 1;
  slot->status.message.clear();
  slot->used_ms = now_ms;
  ++slot->status.loads;
  LOG_INFO("the model '{}' is loaded", slot->status.name);
  for (Waiter& waiter : slot->waiters) {
    if (waiter.gone && waiter.gone()) continue;
    calls.emplace_back([on_ready = std::move(waiter.on_ready), use = use_of(slot)] { on_ready(use); });
  }
  slot->waiters.clear();
  // Its process has pulled it: only now there are files that show its size.
  if (slot->model.bytes == 0 && options_.describe) calls.emplace_back([this, slot] { describe(*slot); });
}

// Without the lock, as it reads files.
void ModelPool::describe(Slot& slot) {
  ServedModel model;
  {
    const std::lock_guard lock(mutex_);
    model = slot.model;
  }
  options_.describe(model);
  const std::lock_guard lock(mutex_);
  slot.model.bytes = model.bytes;
  slot.model.context = model.context;
  slot.model.architecture = std::move(model.architecture);
  slot.model.files = std::move(model.files);
  list_anew();
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
    LOG_ERROR("the model '{}' does not load: {}", slot.status.name, why);
    failed(slot, error(StatusCode::kUnavailable, "the model '{}' does not load: {}", slot.status.name, why), why,
           now_ms, calls);
  }
}

// A pinned model is tried again after the pause without a request, as it is to be there before the first one.
void ModelPool::failed(Slot& slot, const Status& answer, const std::string& why, int64_t now_ms, Calls& calls) {
  slot.status.state = ModelState::kFailed;
  slot.status.error = why;
  slot.failed_ms = now_ms;
  ++slot.status.failures;
  slot.wanted |= slot.status.pinned;
  refuse_waiters(slot, answer, calls);
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

void ModelPool::look_at(const SlotPtr& shared, int64_t now_ms, Calls& calls) {
  Slot& slot = *shared;
  if (std::exchange(slot.just_used, false) || slot.status.running > 0) slot.used_ms = now_ms;
  expire(slot, now_ms, calls);
  if (slot.process) {
    const ModelProcess::State state = slot.process->poll();
    if (state == ModelProcess::State::kEnded) {
      ended(slot, now_ms, calls);
    } else if (state == ModelProcess::State::kReady && slot.status.state == ModelState::kLoading) {
      loaded(shared, now_ms, calls);
    }
  }
  if (slot.status.state == ModelState::kFailed && now_ms - slot.failed_ms >= kRetryPauseMs) {
    slot.status.state = ModelState::kUnloaded;
  }
  const bool idle = slot.status.state == ModelState::kLoaded && slot.status.running == 0 && !slot.status.pinned;
  const int64_t ttl_ms = slot.model.ttl_s ? int64_t{*slot.model.ttl_s} * 1000 : options_.ttl_ms;
  if (idle && ttl_ms > 0 && now_ms - slot.used_ms >= ttl_ms) {
    LOG_INFO("the model '{}' has had no request for {} s: it is unloaded", slot.status.name, ttl_ms / 1000);
    give_up(slot, slot.status.expirations);
  }
}

bool ModelPool::has_space(const ServedModel& model) const {
  uint64_t used = 0;
  int count = 0, pinned = 0;
  for (const SlotPtr& slot : slots_) {
    if (!slot->process) continue;
    ++count;
    pinned += slot->status.pinned ? 1 : 0;
    used += slot->model.bytes;
  }
  if (count == 0) return true;  // it is tried alone, whatever the estimate
  if (options_.most_loaded > 0 && count >= options_.most_loaded) return false;
  const auto scaled = [](uint64_t bytes) { return static_cast<uint64_t>(static_cast<double>(bytes) * kMemoryFactor); };
  // One that its process has yet to pull may be of any size: it is tried beside those alone that always stay.
  if (options_.memory_bytes > 0 && model.bytes == 0 && count > pinned) return false;
  if (options_.memory_bytes > 0) return scaled(used + model.bytes) <= options_.memory_bytes;
  return !options_.available_bytes || scaled(model.bytes) <= options_.available_bytes();
}

ModelPool::Slot* ModelPool::least_recently_used() {
  Slot* found = nullptr;
  for (const SlotPtr& shared : slots_) {
    Slot& slot = *shared;
    if (slot.status.state != ModelState::kLoaded || slot.status.running > 0 || slot.status.pinned) continue;
    if (found == nullptr || slot.used_ms < found->used_ms) found = &slot;
  }
  return found;
}

// The model whose request has waited longest, if there is space for it or can be.
void ModelPool::load_next(int64_t now_ms, Calls& calls) {
  Slot* next = nullptr;
  for (const SlotPtr& shared : slots_) {
    Slot& slot = *shared;
    if (slot.process && slot.status.state != ModelState::kLoaded) return;  // it loads, or it still goes
    if (slot.status.state != ModelState::kUnloaded || (slot.waiters.empty() && !slot.wanted)) continue;
    const auto since = [](const Slot& s) { return s.waiters.empty() ? INT64_MAX : s.waiters.front().since_ms; };
    if (next == nullptr || since(slot) < since(*next)) next = &slot;
  }
  if (next == nullptr) return;
  const ServedModel& model = next->model;
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
  failed(*next, process.status(), process.status().message(), now_ms, calls);
}

void ModelPool::tick(int64_t now_ms) {
  Calls calls;
  {
    const std::lock_guard lock(mutex_);
    for (const SlotPtr& slot : slots_) look_at(slot, now_ms, calls);
  }
  // Before the next load, which needs the size of what has just been loaded.
  for (const auto& call : std::exchange(calls, {})) call();
  {
    const std::lock_guard lock(mutex_);
    if (!shut_down_) load_next(now_ms, calls);
  }
  for (const auto& call : calls) call();
}

void ModelPool::shut_down() {
  Calls calls;
  {
    const std::lock_guard lock(mutex_);
    shut_down_ = true;
    for (const SlotPtr& slot : slots_) {
      slot->wanted = false;
      refuse_waiters(*slot, Status(StatusCode::kUnavailable, "the server stops"), calls);
      if (!slot->process) continue;
      slot->status.state = ModelState::kUnloading;
      slot->process->terminate();
    }
  }
  for (const auto& call : calls) call();
}

void ModelPool::interrupt() {
  const std::lock_guard lock(mutex_);
  for (const SlotPtr& slot : slots_) {
    if (slot->process) slot->process->interrupt();
  }
}

}  // namespace millrace
