#include "pipeline/coordinator_thread.h"

#include <functional>
#include <thread>

#include "base/clock.h"
#include "base/trace.h"

namespace millrace {

namespace {

Status shutting_down() { return Status(StatusCode::kUnavailable, "the server is shutting down"); }

}  // namespace

CoordinatorThread::CoordinatorThread(const PipelineSpec& spec, const Library& library, CoordinatorOptions options,
                                     CoordinatorEnv& env, Payloads& payloads, std::unique_ptr<Inbox> inbox)
    : inbox_(std::move(inbox)),
      waker_(inbox_->waker()),
      env_(*this, env),
      payloads_(payloads),
      core_(spec, library, std::move(options), env_, payloads, monotonic_ms()) {
  core_.on_arrival([waker = waker_] { waker->wake(); });
}

// With the lock held, as everything that the core calls.
void CoordinatorThread::DeferredEnv::joined(const ReplicaView& replica) {
  owner_.calls_.push_back([this, replica] { inner_.joined(replica); });
}

void CoordinatorThread::DeferredEnv::lost(const ReplicaView& replica, const std::string& reason) {
  owner_.calls_.push_back([this, replica, reason] { inner_.lost(replica, reason); });
}

// ---- any thread

ReqId CoordinatorThread::submit(const Value& inputs, SubmitOptions options, RequestSink sink) {
  auto client = std::make_shared<Client>();
  client->sink = std::move(sink);
  // The core gets push() as its sink, which only queues: the client is called by deliver(), without the lock.
  auto pushes = std::bind_front(&CoordinatorThread::push, this, client);
  Coordinator::Opened opened;
  {
    std::lock_guard lock(mutex_);
    opened = core_.open(inputs, std::move(options), std::move(pushes), monotonic_ms());
    if (!opened.refused) clients_.emplace(opened.id, client);
  }
  // The copy into a relay takes as long as its bytes, so it is made without the lock. The request may end meanwhile;
  // start() then releases what was given.
  if (opened.inputs_to) {
    auto payload = payloads_.give(opened.id, inputs, *opened.inputs_to);
    locked().core.start(opened.id, std::move(payload), monotonic_ms());
  }
  waker_->wake();
  return opened.id;
}

void CoordinatorThread::set_prompt(ReqId id, Result<wire::TokenizedRequest> request, const PlacementHint& hint) {
  if (request.ok()) {
    locked().core.set_prompt(id, std::move(request).value(), hint, monotonic_ms());
  } else {
    locked().core.fail(id, request.status(), monotonic_ms());
  }
  waker_->wake();
}

void CoordinatorThread::cancel(ReqId id) {
  locked().core.cancel(id, monotonic_ms());
  waker_->wake();
}

void CoordinatorThread::abort(ReqId id) {
  std::lock_guard lock(mutex_);
  const auto found = clients_.find(id);
  if (found == clients_.end()) return;
  // Before the core's own end: events that deliver() has taken already see it, and at most one is under way.
  found->second->closed.store(true);
  clients_.erase(found);
  core_.abort(id, monotonic_ms());
}

void CoordinatorThread::admin(PipelineCommand command, AdminCommands::Done done) {
  // Called by the core with the lock held; `done` itself is called by deliver().
  const auto later = [this, done = std::move(done)](std::vector<wire::AdminReply> replies) {
    calls_.push_back([done, replies = std::move(replies)] { done(replies); });
  };
  locked().core.admin(std::move(command), later, monotonic_ms());
  waker_->wake();
}

void CoordinatorThread::hold(bool held) {
  locked().core.hold(held);
  waker_->wake();
}

bool CoordinatorThread::wait_idle(int timeout_ms) {
  const int64_t end_ms = monotonic_ms() + timeout_ms;
  while (books().live > 0 && monotonic_ms() < end_ms) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  bool idle = false;
  {
    std::lock_guard lock(mutex_);
    idle = core_.books().live == 0;
    core_.fail_all(shutting_down(), monotonic_ms());
  }
  waker_->wake();
  return idle;
}

void CoordinatorThread::down(const std::string& stage, uint32_t replica, uint64_t incarnation,
                             const std::string& reason) {
  locked().core.down(stage, replica, incarnation, reason, monotonic_ms());
  waker_->wake();
}

// The core's sink, with the lock held: the client's own is called later.
SinkAnswer CoordinatorThread::push(const std::shared_ptr<Client>& client, RequestEvent& event) {
  if (event.is_chunk() && client->full.load()) return SinkAnswer::kFull;
  if (event.end()) clients_.erase(event.id);
  events_.push_back({client, std::move(event)});
  return SinkAnswer::kTaken;
}

// ---- the coordinator's thread

void CoordinatorThread::run() {
  trace::name_thread("coordinator");
  int64_t next_tick_ms = 0;
  while (!stop_requested()) {
    auto message = inbox_->receive(kCoordinatorTickMs);
    std::optional<int64_t> ticked_ms;
    {
      std::lock_guard lock(mutex_);
      const int64_t now_ms = monotonic_ms();
      trace::Span span(message ? "messages" : "tick", "coordinator");
      // At most kMaxBatch messages with the lock held, so that submit() and abort() of other threads get their turn.
      const bool woken = !message;
      for (int i = 0; message; message = ++i < kMaxBatch ? inbox_->receive(0) : std::nullopt) {
        core_.handle(std::move(*message), now_ms);
      }
      if (woken || now_ms >= next_tick_ms) {
        core_.tick(now_ms);
        ticked_ms = now_ms;
        next_tick_ms = now_ms + kCoordinatorTickMs;
      }
    }
    // Outside of the lock: a client's sink may take its own locks, and may call abort().
    deliver();
    retry_held();
    if (ticked_ms) env_.ticked(*ticked_ms);
  }
  locked().core.fail_all(shutting_down(), monotonic_ms());
  deliver();
}

void CoordinatorThread::deliver() {
  std::vector<std::function<void()>> calls;
  {
    std::lock_guard lock(mutex_);
    // Swapped, not copied: other threads add events while these are delivered.
    delivering_.swap(events_);
    calls.swap(calls_);
  }
  if (delivering_.empty() && calls.empty()) return;
  trace::Span span("deliver", "coordinator");
  for (PendingEvent& pending : delivering_) {
    const ReqId id = pending.event.id;
    deliver(*pending.client, pending.event);
    if (!pending.client->held.empty()) held_.emplace(id, pending.client);
  }
  delivering_.clear();
  for (const auto& call : calls) call();
}

void CoordinatorThread::deliver(Client& client, RequestEvent& event) {
  if (client.closed.load()) return client.held.clear();
  const RequestEvent::End* const end = event.end();
  // Of a request that failed, the client gets no more than that.
  if (end && !end->status.ok()) client.held.clear();
  if (end) client.held_until_ms = monotonic_ms() + kSlowClientMs;
  if (!end && client.held.empty() && client.sink(event) == SinkAnswer::kTaken) return;
  client.held.push_back(std::move(event));
  deliver_held(client);
}

// True: the sink has taken all.
bool CoordinatorThread::deliver_held(Client& client) {
  while (!client.held.empty()) {
    RequestEvent& event = client.held.front();
    // An end that is an error goes out whatever the sink answers: nothing may follow it.
    const bool may_wait = !event.end() || event.end()->status.ok();
    if (client.sink(event) == SinkAnswer::kFull && may_wait) {
      client.full.store(true);
      return false;
    }
    client.held.pop_front();
    if (client.held_until_ms != 0) client.held_until_ms = monotonic_ms() + kSlowClientMs;  // it does read
  }
  client.full.store(false);
  return true;
}

void CoordinatorThread::retry_held() {
  for (auto held = held_.begin(); held != held_.end();) {
    Client& client = *held->second;
    if (client.closed.load()) client.held.clear();
    bool over = deliver_held(client);
    if (over) {
      locked().core.client_ready(held->first, monotonic_ms());
    } else if (client.held_until_ms != 0 && monotonic_ms() >= client.held_until_ms) {
      const Status why(StatusCode::kResourceExhausted, "the client takes its answer too slowly");
      RequestEvent end{.id = held->first, .body = RequestEvent::End{.status = why}};
      client.held.clear();
      client.sink(end);
      over = true;
    }
    held = over ? held_.erase(held) : std::next(held);
  }
}

}  // namespace millrace
