#include "http/exchange.h"

#include "base/log.h"

namespace millrace::http {

void Hub::wake_locked() {
  if (woken_) return;
  woken_ = true;
  wake_();
}

void Hub::ready(std::shared_ptr<Exchange> exchange) {
  std::lock_guard lock(mutex_);
  if (closed_) return;
  exchanges_.push_back(std::move(exchange));
  wake_locked();
}

void Hub::post(std::function<void()> task) {
  std::lock_guard lock(mutex_);
  if (closed_) return;
  tasks_.push_back(std::move(task));
  wake_locked();
}

void Hub::run() {
  std::vector<std::shared_ptr<Exchange>> exchanges;
  std::vector<std::function<void()>> tasks;
  {
    std::lock_guard lock(mutex_);
    woken_ = false;
    exchanges.swap(exchanges_);
    tasks.swap(tasks_);
  }
  for (const auto& exchange : exchanges) {
    if (exchange->on_ready) exchange->on_ready();
  }
  for (auto& task : tasks) {
    try {
      task();
    } catch (const std::exception& problem) {
      LOG_ERROR("a task on the io thread failed: {}", problem.what());
    }
  }
}

void Hub::close() {
  std::vector<std::shared_ptr<Exchange>> exchanges;
  std::vector<std::function<void()>> tasks;  // destroyed outside the lock: their captures may call back
  std::lock_guard lock(mutex_);
  closed_ = true;
  exchanges.swap(exchanges_);
  tasks.swap(tasks_);
}

Exchange::Exchange(std::shared_ptr<Hub> hub, std::function<void()> when_ready)
    : on_ready(std::move(when_ready)), hub_(std::move(hub)) {}

void Exchange::ready_locked() {
  if (queued_) return;
  queued_ = true;
  hub_->ready(shared_from_this());
}

bool Exchange::send(Response response) {
  std::function<void()> dropped;  // destroyed after the lock is released: it may own a responder
  std::lock_guard lock(mutex_);
  if (phase_ != Phase::kOpen) return false;
  response_ = std::move(response);
  head_new_ = true;
  phase_ = Phase::kEnded;
  dropped.swap(on_disconnect_);
  ready_locked();
  return true;
}

bool Exchange::start_stream(std::string content_type, Headers headers) {
  std::lock_guard lock(mutex_);
  if (phase_ != Phase::kOpen) return false;
  response_.status = 200;
  response_.headers = std::move(headers);
  response_.headers.set("Cache-Control", "no-cache");
  response_.headers.set("X-Accel-Buffering", "no");
  response_.content_type = std::move(content_type);
  head_new_ = true;
  streaming_ = true;
  phase_ = Phase::kStreaming;
  ready_locked();
  return true;
}

bool Exchange::write(std::string_view chunk) {
  std::lock_guard lock(mutex_);
  if (phase_ != Phase::kStreaming || too_slow_) return false;
  if (chunk.empty()) return true;
  if (!fits(chunk.size())) {
    too_slow_ = true;
    hub_->ready(shared_from_this());  // even when queued: what is queued is taken only when the socket takes more
    return false;
  }
  add_locked(chunk);
  ready_locked();
  return true;
}

// One event over the limit is not the reader's fault; a second one behind it is. Where all together hold too much,
// those that hold least are not the reason.
bool Exchange::fits(std::size_t more) const {
  const std::size_t unsent = unsent_.load(std::memory_order_relaxed);
  const Limits& limits = hub_->limits;
  if (unsent == 0) return true;
  if (unsent + more > limits.max_pending_bytes) return false;
  return unsent + more <= limits.unsent_share_bytes ||
         hub_->unsent.load(std::memory_order_relaxed) + more <= limits.unsent_bytes;
}

void Exchange::add_locked(std::string_view chunk) {
  unsent_.fetch_add(chunk.size(), std::memory_order_relaxed);
  hub_->unsent.fetch_add(chunk.size(), std::memory_order_relaxed);
  pending_.append(chunk);
}

void Exchange::bytes_sent(std::size_t count) {
  unsent_.fetch_sub(count, std::memory_order_relaxed);
  hub_->unsent.fetch_sub(count, std::memory_order_relaxed);
}

void Exchange::forget_unsent() {
  hub_->unsent.fetch_sub(unsent_.exchange(0, std::memory_order_relaxed), std::memory_order_relaxed);
}

void Exchange::end(std::string_view last) {
  std::function<void()> dropped;
  std::lock_guard lock(mutex_);
  if (phase_ != Phase::kStreaming || too_slow_) return;
  phase_ = Phase::kEnded;
  dropped.swap(on_disconnect_);
  add_locked(last);
  ready_locked();
}

void Exchange::abort() {
  std::function<void()> dropped;
  std::lock_guard lock(mutex_);
  if (phase_ == Phase::kEnded || phase_ == Phase::kGone) return;
  phase_ = Phase::kEnded;
  aborted_ = true;
  dropped.swap(on_disconnect_);
  ready_locked();
}

void Exchange::abandon() {
  {
    std::lock_guard lock(mutex_);
    if (phase_ == Phase::kEnded || phase_ == Phase::kGone) return;
  }
  LOG_ERROR("a request was dropped without an answer");
  // An empty 500 is filled in by the session, which knows how errors look.
  if (!send({.status = 500, .content_type = ""})) abort();
}

void Exchange::on_disconnect(std::function<void()> callback) {
  std::function<void()> dropped;
  std::lock_guard lock(mutex_);
  if (phase_ == Phase::kEnded) {
    dropped = std::move(callback);
  } else if (phase_ == Phase::kGone) {
    if (callback) hub_->post(std::move(callback));
  } else {
    dropped = std::exchange(on_disconnect_, std::move(callback));
  }
}

bool Exchange::disconnected() const {
  std::lock_guard lock(mutex_);
  return phase_ == Phase::kGone || too_slow_;
}

bool Exchange::too_slow() const {
  std::lock_guard lock(mutex_);
  return too_slow_;
}

bool Exchange::ended() const {
  std::lock_guard lock(mutex_);
  return phase_ == Phase::kEnded;
}

void Exchange::take(Taken& taken, std::string& chunk) {
  std::lock_guard lock(mutex_);
  queued_ = false;
  taken.head = head_new_;
  if (head_new_) taken.response = std::move(response_);
  head_new_ = false;
  taken.streaming = streaming_;
  taken.ended = phase_ == Phase::kEnded;
  taken.aborted = aborted_;
  chunk.swap(pending_);
}

bool Exchange::client_gone() {
  std::function<void()> callback;
  {
    std::lock_guard lock(mutex_);
    if (phase_ == Phase::kEnded || phase_ == Phase::kGone) return false;
    phase_ = Phase::kGone;
    pending_.clear();
    forget_unsent();
    callback.swap(on_disconnect_);
  }
  if (!callback) return true;
  try {
    callback();
  } catch (const std::exception& problem) {
    LOG_ERROR("an on_disconnect callback failed: {}", problem.what());
  }
  return true;
}

ResponderPtr make_responder(std::shared_ptr<Exchange> exchange) {
  Exchange* const answered = exchange.get();
  return {answered, [exchange = std::move(exchange)](Exchange*) { exchange->abandon(); }};
}

}  // namespace millrace::http
