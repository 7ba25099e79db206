#include "pipeline/coordinator_thread.h"

#include <thread>

#include "base/trace.h"

namespace millrace {

CoordinatorThread::CoordinatorThread(const PipelineSpec& spec, const Library& library, CoordinatorOptions options,
                                     CoordinatorEnv& doors, Payloads& payloads, std::unique_ptr<Inbox> inbox)
    : inbox_(std::move(inbox)),
      waker_(inbox_->waker()),
      doors_(*this, doors),
      core_(spec, library, options, doors_, payloads, monotonic_ms()) {
  core_.on_arrival([waker = waker_] { waker->wake(); });
}

CoordinatorThread::~CoordinatorThread() = default;

// With the lock held, as everything that the core calls.
void CoordinatorThread::Doors::lost(const ReplicaView& replica, const std::string& reason) {
  owner_.calls_.push_back([this, replica, reason] { inner_.lost(replica, reason); });
}

// ---- any thread

ReqId CoordinatorThread::submit(Value inputs, SubmitOptions options, PipelineSink sink) {
  auto client = std::make_shared<Client>();
  client->sink = std::move(sink);
  ReqId id;
  {
    std::lock_guard lock(mutex_);
    id = core_.submit(
        std::move(inputs), std::move(options), [this, client](RequestEvent& event) { return keep(client, event); },
        monotonic_ms());
    const bool refused = !deliveries_.empty() && deliveries_.back().client == client &&
                         deliveries_.back().event.kind == RequestEvent::Kind::kEnd;
    if (!refused) clients_.emplace(id, std::move(client));
  }
  waker_->wake();
  return id;
}

void CoordinatorThread::begin(ReqId id, Result<wire::TokenizedRequest> request, const PlacementHint& hint) {
  {
    std::lock_guard lock(mutex_);
    if (request.ok()) {
      core_.begin(id, std::move(request).value(), hint, monotonic_ms());
    } else {
      core_.fail(id, request.status(), monotonic_ms());
    }
  }
  waker_->wake();
}

bool CoordinatorThread::is_live(ReqId id) const {
  std::lock_guard lock(mutex_);
  return core_.is_live(id);
}

void CoordinatorThread::cancel(ReqId id) {
  {
    std::lock_guard lock(mutex_);
    core_.cancel(id, monotonic_ms());
  }
  waker_->wake();
}

void CoordinatorThread::abort(ReqId id) {
  std::lock_guard lock(mutex_);
  const auto found = clients_.find(id);
  if (found == clients_.end()) return;
  found->second->closed.store(true);
  clients_.erase(found);
  core_.abort(id, monotonic_ms());
}

void CoordinatorThread::admin(PipelineCommand order, AdminCommands::Done done) {
  {
    std::lock_guard lock(mutex_);
    const auto later = [this, done = std::move(done)](std::vector<wire::AdminReply> replies) {
      calls_.push_back([done, replies = std::move(replies)] { done(replies); });
    };
    core_.admin(std::move(order), later, monotonic_ms());
  }
  waker_->wake();
}

void CoordinatorThread::drain() {
  std::lock_guard lock(mutex_);
  core_.drain();
}

bool CoordinatorThread::wait_idle(int timeout_ms) {
  const int64_t end_ms = monotonic_ms() + timeout_ms;
  while (books().live > 0 && monotonic_ms() < end_ms) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  bool idle = false;
  {
    std::lock_guard lock(mutex_);
    idle = core_.books().live == 0;
    core_.fail_all(Status(StatusCode::kUnavailable, "the server is shutting down"), monotonic_ms());
  }
  waker_->wake();
  return idle;
}

void CoordinatorThread::shut_down(int64_t grace_ms) {
  std::lock_guard lock(mutex_);
  core_.shut_down(grace_ms);
}

void CoordinatorThread::expect(const std::string& stage, uint32_t replica, uint64_t incarnation) {
  std::lock_guard lock(mutex_);
  core_.expect(stage, replica, incarnation);
}

void CoordinatorThread::down(const std::string& stage, uint32_t replica, uint64_t incarnation,
                             const std::string& reason) {
  {
    std::lock_guard lock(mutex_);
    core_.down(stage, replica, incarnation, reason, monotonic_ms());
  }
  waker_->wake();
}

PipelineHealth CoordinatorThread::health() const {
  std::lock_guard lock(mutex_);
  return core_.health();
}

CoordinatorBooks CoordinatorThread::books() const {
  std::lock_guard lock(mutex_);
  return core_.books();
}

// The core's sink, with the lock held: the client's own is called later.
SinkAnswer CoordinatorThread::keep(const std::shared_ptr<Client>& client, RequestEvent& event) {
  if (event.kind == RequestEvent::Kind::kChunk && client->full.load()) return SinkAnswer::kFull;
  if (event.kind == RequestEvent::Kind::kEnd) clients_.erase(event.id);
  deliveries_.push_back({client, std::move(event)});
  return SinkAnswer::kTaken;
}

// ---- the coordinator's thread

void CoordinatorThread::run() {
  trace::name_thread("coordinator");
  int64_t next_tick_ms = 0;
  while (!stop_requested()) {
    auto message = inbox_->receive(kCoordinatorTickMs);
    {
      std::lock_guard lock(mutex_);
      const int64_t now_ms = monotonic_ms();
      trace::Span span(message ? "messages" : "tick", "coordinator");
      const bool woken = !message;
      for (int i = 0; message; message = ++i < kMaxBatch ? inbox_->receive(0) : std::nullopt) {
        core_.handle(std::move(*message), now_ms);
      }
      if (woken || now_ms >= next_tick_ms) {
        core_.tick(now_ms);
        next_tick_ms = now_ms + kCoordinatorTickMs;
      }
    }
    deliver();
    retry_held();
  }
  {
    std::lock_guard lock(mutex_);
    core_.fail_all(Status(StatusCode::kUnavailable, "the server is shutting down"), monotonic_ms());
  }
  deliver();
}

void CoordinatorThread::deliver() {
  std::deque<Delivery> deliveries;
  std::deque<std::function<void()>> calls;
  {
    std::lock_guard lock(mutex_);
    deliveries.swap(deliveries_);
    calls.swap(calls_);
  }
  if (deliveries.empty() && calls.empty()) return;
  trace::Span span("deliver", "coordinator");
  for (Delivery& delivery : deliveries) {
    const ReqId id = delivery.event.id;
    deliver(*delivery.client, std::move(delivery.event));
    if (!delivery.client->held.empty()) held_.emplace(id, delivery.client);
  }
  for (const auto& call : calls) call();
}

void CoordinatorThread::deliver(Client& client, RequestEvent event) {
  if (client.closed.load()) return client.held.clear();
  const bool end = event.kind == RequestEvent::Kind::kEnd;
  // A request that failed has nothing more to say than that.
  if (end && !event.status.ok()) client.held.clear();
  if (end) client.held_until_ms = monotonic_ms() + kSlowClientMs;
  if (!end && client.held.empty() && client.sink(event) == SinkAnswer::kTaken) return;
  client.held.push_back(std::move(event));
  say_held(client);
}

// True when all is said.
bool CoordinatorThread::say_held(Client& client) {
  while (!client.held.empty()) {
    RequestEvent& event = client.held.front();
    const bool may_wait = event.kind == RequestEvent::Kind::kChunk || event.status.ok();
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
    bool over = say_held(client);
    if (over) {
      std::lock_guard lock(mutex_);
      core_.client_ready(held->first, monotonic_ms());
    } else if (client.held_until_ms != 0 && monotonic_ms() >= client.held_until_ms) {
      RequestEvent end{.kind = RequestEvent::Kind::kEnd, .id = held->first, .state = RequestState::kFailed};
      end.status = Status(StatusCode::kResourceExhausted, "the client takes its answer too slowly");
      client.held.clear();
      client.sink(end);
      over = true;
    }
    held = over ? held_.erase(held) : std::next(held);
  }
}

}  // namespace millrace
