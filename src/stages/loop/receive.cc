// What comes in: who may say it, whether it is new, and the gets of what lies in a relay.
#include <algorithm>
#include <variant>

#include "base/trace.h"
#include "payload/packing.h"
#include "stages/loop/detach.h"
#include "stages/stage_loop.h"
#include "wire/limits.h"

namespace millrace {

using loop::CallPurpose;
using loop::EdgeEnd;
using loop::Ended;

void StageLoop::dispatch(wire::Message&& message) {
  std::visit([this](auto&& body) { on(std::forward<decltype(body)>(body)); }, std::move(message));
}

template <typename M>
void StageLoop::on(M&&) {
  ++counters_.unexpected;
}

StageLoop::Heard StageLoop::from_coordinator(const wire::Origin& from) {
  if (standing_ == Membership::kJoining) return Heard::kPark;
  if (from.session != session_) {
    ++counters_.stale;
    return Heard::kIgnore;
  }
  heard_ms_ = now_ms_;
  return Heard::kFine;
}

StageLoop::Heard StageLoop::from_peer(const wire::Origin& from) {
  if (standing_ == Membership::kJoining) return Heard::kPark;
  const loop::Standing standing = book_.standing(from.stage, from.replica, from.incarnation);
  if (from.session != session_ || standing == loop::Standing::kGone) {
    ++counters_.stale;
    return Heard::kIgnore;
  }
  return standing == loop::Standing::kMember ? Heard::kFine : Heard::kPark;
}

// The oldest make room.
bool StageLoop::park(wire::Message&& message, std::size_t size_bytes) {
  while (!parked_.empty() &&
         (parked_.size() >= loop::kMaxParked || parked_bytes_ + size_bytes > loop::kMaxParkedBytes)) {
    parked_bytes_ -= parked_.front().size_bytes;
    parked_.pop_front();
    ++counters_.stale;
  }
  parked_bytes_ += size_bytes;
  parked_.push_back({.message = std::move(message), .until_ms = now_ms_ + loop::kParkMs, .size_bytes = size_bytes});
  return true;
}

// Those that are still unknown park again, with their time as it was.
void StageLoop::unpark() {
  std::deque<Parked> parked;
  parked.swap(parked_);
  parked_bytes_ = 0;
  for (Parked& old : parked) {
    const std::size_t before = parked_.size();
    dispatch(std::move(old.message));
    if (parked_.size() > before) parked_.back().until_ms = old.until_ms;
  }
}

void StageLoop::on(wire::Submit&& message) {
  const Heard heard = from_coordinator(message.from);
  if (heard == Heard::kIgnore) return;
  const std::size_t size_bytes = message.payload.tree.bytes.size();
  if (heard == Heard::kPark) return static_cast<void>(park(std::move(message), size_bytes));
  if (!config_.entry && !message.generate) {
    ++counters_.strangers;
    return;
  }
  if (requests_.contains(message.id) || tombstones_.find(message.id)) {
    ++counters_.repeated;
    return;
  }
  Request* request =
      request_for(message.id, message.timeout_ms, std::move(message.terminals), std::move(message.route));
  if (!request) return;
  if (!config_.spec.wait_for.empty()) {
    return fail(*request, internal_error("the entry stage waits for other stages' payloads"));
  }
  loop::InPayload& payload = request->payloads[""];
  payload.source = {};
  if (message.generate) {
    payload.here = true;
    return start(*request, std::move(*message.generate));
  }
  fetch(*request, {.kind = CallPurpose::Kind::kGetPayload, .request = message.id}, std::move(message.payload));
}

bool StageLoop::is_predecessor(const wire::DataReady& message) const {
  const auto& sources = message.kind == wire::DataKind::kPayload ? config_.payload_from : config_.stream_from;
  return contains(sources, message.from.stage) && message.to == config_.self.stage;
}

void StageLoop::on(wire::DataReady&& message) {
  if (!wire::validate(message).ok() || !is_predecessor(message)) {
    ++counters_.strangers;
    return;
  }
  const Heard heard = from_peer(message.from);
  if (heard == Heard::kIgnore) return;
  const std::size_t size_bytes = message.payload ? message.payload->tree.bytes.size() : 0;
  if (heard == Heard::kPark) return static_cast<void>(park(std::move(message), size_bytes));
  if (const std::optional<Ended> how = tombstones_.find(message.id)) return ended_before(*how, message);
  const auto known = requests_.find(message.id);
  if (known != requests_.end() && known->second->phase == Request::Phase::kEnding) {
    return ended_before(Ended::kFailed, message);
  }
  Request* request = known != requests_.end() ? known->second.get()
                                              : request_for(message.id, message.timeout_ms,
                                                            std::move(message.terminals), std::move(message.route));
  if (request) on_header(*request, message);
}

void StageLoop::on_header(Request& request, wire::DataReady& message) {
  switch (message.kind) {
    case wire::DataKind::kPayload:
      return on_payload_header(request, message);
    case wire::DataKind::kChunk:
      return on_chunk_header(request, message);
    case wire::DataKind::kDone:
      return on_stream_end(request, message);
    case wire::DataKind::kError:
      return fail(request,
                  Status(message.failure->code == StatusCode::kOk ? StatusCode::kInternal : message.failure->code,
                         message.failure->message));
  }
}

// A new request. nullptr: it was refused, and has failed.
StageLoop::Request* StageLoop::request_for(ReqId id, int64_t timeout_ms, std::vector<std::string> terminals,
                                           std::vector<wire::RouteHop> route) {
  auto owned = std::make_unique<Request>();
  owned->id = id;
  owned->terminals = std::move(terminals);
  owned->route = std::move(route);
  const int64_t limit_ms = timeout_ms == 0 ? loop::kDefaultTimeoutMs : std::min(timeout_ms, loop::kMaxTimeoutMs);
  owned->deadline_ms = now_ms_ + limit_ms;
  const auto most = static_cast<std::size_t>(std::max(config_.spec.resources.max_requests, 1));
  Status refused;
  if (drain_until_ms_) refused = error(StatusCode::kUnavailable, "the stage is shutting down");
  if (requests_.size() >= most) {
    refused = error(StatusCode::kResourceExhausted, "{} requests are in the stage; wanted at most {}",
                    requests_.size() + 1, most);
  }
  if (limit_ms < 0) refused = error(StatusCode::kDeadline, "the request came {} ms too late", -limit_ms);
  ++counters_.received;
  if (!refused.ok()) {
    ++counters_.failed;
    tombstones_.add(id, Ended::kFailed, now_ms_);
    const Status why = refused.with_prefix(config_.self.stage);
    notify(wire::Complete{.id = id, .from = origin(), .failure = wire::Failure{why.code(), why.message()}});
    return nullptr;
  }
  Request* request = owned.get();
  trace::async_begin("request in a stage", "stage", trace_id(id));
  requests_[id] = std::move(owned);
  deadlines_.emplace(request->deadline_ms, id);
  return request;
}

// Nobody wants it, but its sender holds a credit and may wait for acknowledgements until somebody takes it.
void StageLoop::ended_before(Ended how, wire::DataReady& message) {
  ++counters_.late;
  if (message.payload) drain(message.id, *message.payload);
  const bool stream = message.kind == wire::DataKind::kChunk || message.kind == wire::DataKind::kDone;
  if (how != Ended::kFinished || !stream) return;
  const uint64_t chunks = *message.chunk_id + (message.kind == wire::DataKind::kChunk ? 1 : 0);
  acknowledge(message.id, message.from.stage, {message.from.replica, message.from.incarnation}, chunks, nullptr);
}

// Of another stage, or of the coordinator for the client.
void StageLoop::on(wire::DataAck&& message) {
  const bool client = message.from.stage.empty();
  const Heard heard = client ? from_coordinator(message.from) : from_peer(message.from);
  if (heard != Heard::kFine || message.to != config_.self.stage) return;
  Request* request = live(message.id);
  if (!request) return;  // said after the end, as the last ones are
  const auto found = request->out.find(message.from.stage);
  const EdgeEnd from{message.from.replica, message.from.incarnation};
  const bool known = found != request->out.end() && (client || found->second.to == from);
  if (!known || message.chunks.value_or(0) > found->second.sent) {
    ++counters_.unexpected;
    return;
  }
  loop::OutEdge& edge = found->second;
  if (!message.chunks) edge.payload_acked = true;
  for (; edge.acked < message.chunks.value_or(0); ++edge.acked) {
    if (!client) continue;
    edge.client_bytes_sum -= edge.client_bytes.front();
    edge.client_bytes.pop_front();
  }
  if (!edge.waiting) pump(*request, edge);
}

// ---- gets ----

namespace {

uint64_t total_bytes(const wire::Payload& payload) {
  uint64_t total = 0;
  for (const uint64_t bytes : payload.part_bytes) total = std::max(total, total + bytes);  // stays large on overflow
  return total;
}

}  // namespace

// True: it is under way; false: the relay has no room now.
Result<bool> StageLoop::try_get(const CallPurpose& purpose, const wire::Payload& payload, int64_t timeout_ms) {
  const auto relay = doors_.relays.find(payload.relay);
  if (relay == doors_.relays.end()) {
    return error(StatusCode::kUnavailable, "the payload came by relay '{}', which this stage has not", payload.relay);
  }
  GetRequest get{.descriptor = payload.descriptor.bytes, .request = purpose.request};
  get.timeout_ms = static_cast<int>(std::clamp<int64_t>(timeout_ms, 1, get.timeout_ms));
  get.sizes.assign(payload.part_bytes.begin(), payload.part_bytes.end());
  CallPurpose with_payload = purpose;
  with_payload.payload = std::make_shared<wire::Payload>(payload);
  const Status status = calls_.get(*relay->second, std::move(get), std::move(with_payload));
  if (status.ok()) return true;
  if (status.code() == StatusCode::kResourceExhausted) return false;
  return status;
}

void StageLoop::fetch(Request& request, CallPurpose purpose, wire::Payload payload) {
  if (purpose.kind == CallPurpose::Kind::kGetPayload) ++request.fetching_payloads;
  if (total_bytes(payload) == 0) {
    const std::vector<SharedBytes> parts(std::min(payload.part_bytes.size(), kMaxRelayParts));
    return fetched(request, purpose, restore(payload.tree.bytes, payload.tensors, parts));
  }
  const Result<bool> under_way = try_get(purpose, payload, request.deadline_ms - now_ms_);
  if (!under_way.ok()) return fetched(request, purpose, under_way.status());
  if (*under_way) {
    ++request.calls;
    return;
  }
  ++counters_.refusals;
  waiting_gets_.push_back({.purpose = std::move(purpose), .payload = std::move(payload)});
  retry_ms_ = std::min(retry_ms_, now_ms_ + loop::kRetryMs);
}

void StageLoop::drain(ReqId id, const wire::Payload& payload) {
  if (total_bytes(payload) == 0 || drains_ >= loop::kMaxDrains) return;  // else the sender's lease frees it
  const Result<bool> under_way =
      try_get({.kind = CallPurpose::Kind::kDrain, .request = id}, payload, loop::kPeerWaitMs);
  if (under_way.ok() && *under_way) ++drains_;
}

void StageLoop::hear_relays(std::vector<loop::CallEnd>& ends) {
  for (loop::CallEnd& end : ends) {
    if (end.purpose.kind == CallPurpose::Kind::kDrain) {
      --drains_;
      continue;
    }
    const auto found = requests_.find(end.purpose.request);
    CHECK(found != requests_.end());  // a request stays until its calls have ended
    Request& request = *found->second;
    --request.calls;
    if (!waiting_edges_.empty() || !waiting_gets_.empty()) retry_ms_ = now_ms_;  // there is room now
    maybe_over(request);
    if (request.phase == Request::Phase::kEnding) continue;
    if (end.purpose.kind == CallPurpose::Kind::kPut) {
      put_ended(request, end);
    } else if (!end.status.ok()) {
      fetched(request, end.purpose, end.status);
    } else {
      const wire::Payload& payload = *end.purpose.payload;
      fetched(request, end.purpose, restore(payload.tree.bytes, payload.tensors, end.parts));
    }
  }
}

void StageLoop::fetched(Request& request, const CallPurpose& purpose, Result<Value> value) {
  const bool payload = purpose.kind == CallPurpose::Kind::kGetPayload;
  if (payload) --request.fetching_payloads;
  if (!value.ok()) {
    const std::string what = payload ? "the payload" : fmt::format("chunk {}", purpose.chunk_id);
    const std::string source = purpose.edge.empty() ? "the coordinator" : fmt::format("'{}'", purpose.edge);
    return fail(request, value.status().with_prefix(fmt::format("getting {} of {}", what, source)));
  }
  if (payload) return payload_here(request, purpose.edge, std::move(value).value());
  if (!request.started) loop::detach(*value);  // it waits for the payload, in the loop or in the worker
  request.in.at(purpose.edge).held[purpose.chunk_id] = std::move(value).value();
  deliver(request);
}

}  // namespace millrace
