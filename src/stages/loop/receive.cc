// What comes in: who may say it, whether it is new, and the gets of what lies in a relay.
#include <algorithm>
#include <variant>

#include "base/trace.h"
#include "payload/inline_parts.h"
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
  if (message.generate) {
    payload.here = true;
    return start(*request, std::move(*message.generate));
  }
  fetch(*request, {.kind = CallPurpose::Kind::kGetPayload, .request = message.id}, std::move(message.payload));
}

void StageLoop::on(wire::ChunkBatch&& message) {
  if (message.to != config_.self.stage || !contains(sources_, message.from.stage)) {
    ++counters_.strangers;
    return;
  }
  const Heard heard = from_peer(message.from);
  if (heard == Heard::kIgnore) return;
  if (heard == Heard::kPark) {
    std::size_t size_bytes = 0;
    for (const wire::Chunk& chunk : message.chunks) {
      const wire::Payload* payload = wire::payload_of(chunk.body);
      size_bytes += sizeof(wire::Chunk) + (payload ? payload->tree.bytes.size() : 0);
    }
    return static_cast<void>(park(std::move(message), size_bytes));
  }
  for (wire::Chunk& chunk : message.chunks) on_chunk_in(message.from, chunk);
}

void StageLoop::on_chunk_in(const wire::Origin& from, wire::Chunk& chunk) {
  const bool is_result = std::holds_alternative<wire::StageResult>(chunk.body);
  const bool is_predecessor = contains(is_result ? config_.payload_from : config_.stream_from, from.stage);
  if (!is_predecessor || !wire::validate(chunk, false).ok()) {
    ++counters_.strangers;
    return;
  }
  if (const std::optional<Ended> how = tombstones_.find(chunk.id)) return ended_before(*how, from, chunk);
  const auto known = requests_.find(chunk.id);
  if (known != requests_.end() && known->second->phase == Request::Phase::kEnding) {
    return ended_before(Ended::kFailed, from, chunk);
  }
  Request* request = known != requests_.end() ? known->second.get() : nullptr;
  if (!request) {
    // Without an opening an earlier chunk is lost, and the request fails below.
    wire::Opening opening = std::move(chunk.opening).value_or(wire::Opening{});
    request = request_for(chunk.id, opening.timeout_ms, std::move(opening.terminals), std::move(opening.route));
  }
  if (request) on_chunk_in(*request, from, chunk);
}

void StageLoop::on_chunk_in(Request& request, const wire::Origin& from, wire::Chunk& chunk) {
  if (const auto* failure = std::get_if<wire::Failure>(&chunk.body)) {
    return fail(request, Status(failure->code, failure->message));
  }
  if (auto* result = std::get_if<wire::StageResult>(&chunk.body)) {
    if (!next_on_edge(request, from, chunk)) return;
    return on_payload_header(request, from, chunk.seq, result->payload);
  }
  if (std::holds_alternative<wire::StreamEnd>(chunk.body)) return on_stream_end(request, from, chunk);
  on_stream_chunk(request, from, chunk);
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
    notify(wire::Chunk{.id = id, .body = wire::Failure{why.code(), why.message()}});
    return nullptr;
  }
  Request* request = owned.get();
  trace::async_begin("request in a stage", "stage", trace_id(id));
  requests_[id] = std::move(owned);
  deadlines_.emplace(request->deadline_ms, id);
  return request;
}

// Of no use here any more, but its sender holds a credit and may wait for acknowledgements until it is taken.
void StageLoop::ended_before(Ended how, const wire::Origin& from, const wire::Chunk& chunk) {
  ++counters_.late;
  if (const wire::Payload* payload = wire::payload_of(chunk.body)) drain(chunk.id, *payload);
  if (how != Ended::kFinished || !wire::is_numbered(chunk.body)) return;
  acknowledge(chunk.id, from.stage, {from.replica, from.incarnation}, chunk.seq + 1, nullptr);
}

// Of another stage, or of the coordinator for the client.
void StageLoop::on(wire::AckBatch&& message) {
  const bool client = message.from.stage.empty();
  const Heard heard = client ? from_coordinator(message.from) : from_peer(message.from);
  if (heard != Heard::kFine || message.to != config_.self.stage) return;
  for (const wire::Ack& ack : message.acks) on_ack(message.from, ack);
}

void StageLoop::on_ack(const wire::Origin& from, const wire::Ack& ack) {
  Request* request = live(ack.id);
  if (!request) return;  // after the end, as the last ones come
  const auto found = request->out.find(from.stage);
  const bool client = from.stage.empty();
  const bool known =
      found != request->out.end() && (client || found->second.to == EdgeEnd{from.replica, from.incarnation});
  if (!known || ack.count > found->second.sent) {
    ++counters_.unexpected;
    return;
  }
  loop::OutEdge& edge = found->second;
  for (; edge.acked < ack.count; ++edge.acked) {
    if (edge.client_bytes.empty()) continue;
    edge.client_bytes_sum -= edge.client_bytes.front();
    edge.client_bytes.pop_front();
  }
  if (!edge.waiting) pump(*request, edge);
}

// ---- gets ----

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
  if (!payload.in_relay()) return fetched(request, purpose, restore_inline(payload));
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
  if (!payload.in_relay() || drains_ >= loop::kMaxDrains) return;  // else the sender's lease frees it
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
    const std::string what = payload ? "the payload" : fmt::format("chunk {}", purpose.seq);
    const std::string source = purpose.edge.empty() ? "the coordinator" : fmt::format("'{}'", purpose.edge);
    return fail(request, value.status().with_prefix(fmt::format("getting {} of {}", what, source)));
  }
  if (payload) return payload_here(request, purpose.edge, std::move(value).value());
  if (!request.started) loop::detach(*value);  // it waits for the payload, in the loop or in the worker
  request.in.at(purpose.edge).held[purpose.seq] = std::move(value).value();
  deliver(request);
}

}  // namespace millrace
