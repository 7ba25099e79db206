// Out of the stage: one queue for each request and receiver. What finds no room stays at its head and is tried again;
// no other queue waits for it.
#include <algorithm>

#include "stages/stage_loop.h"
#include "wire/limits.h"

namespace millrace {

using loop::OutEdge;
using loop::OutItem;

namespace {

bool is_chunk(const OutItem& item) {
  return item.kind == OutItem::Kind::kChunk || item.kind == OutItem::Kind::kStreamOut;
}
bool no_room(const Status& status) { return status.code() == StatusCode::kResourceExhausted; }

// The window of a stream: so many chunks, and to the client so many bytes, may be unacknowledged. One chunk that is
// larger by itself goes alone.
bool window_is_full(const OutEdge& edge, const OutItem& item) {
  if (!is_chunk(item)) return false;
  if (edge.sent - edge.acked >= wire::kMaxUnackedChunks) return true;
  return edge.client_bytes_sum > 0 && edge.client_bytes_sum + item.size_bytes > wire::kMaxUnackedClientBytes;
}

wire::Message stream_out(ReqId id, wire::Origin from, OutItem& item, wire::Payload payload) {
  wire::StreamOut out{.id = id, .from = std::move(from), .chunk_id = item.chunk_id, .modality = item.modality};
  if (auto* text = std::get_if<wire::TextDelta>(&item.delta)) {
    out.text = std::move(*text);
  } else {
    out.payload = std::move(payload);
  }
  return out;
}

}  // namespace

// What goes to a stage from which no terminal of the request can be reached is of no use to anybody.
bool StageLoop::wanted(const Request& request, const std::string& target) const {
  const auto known = config_.reaches.find(target);
  if (known == config_.reaches.end() || request.terminals.empty()) return true;
  return std::any_of(request.terminals.begin(), request.terminals.end(),
                     [&known](const std::string& terminal) { return contains(known->second, terminal); });
}

void StageLoop::queue(Request& request, const std::string& target, OutItem item) {
  OutEdge& edge = request.out[target];
  edge.target = target;
  if (is_chunk(item)) {
    item.chunk_id = edge.chunks++;
    ++request.waiting_chunks;
  } else if (item.kind == OutItem::Kind::kDone) {
    item.chunk_id = edge.chunks;
  }
  request.waiting_bytes += item.size_bytes;
  watch_congestion(request);
  edge.queue.push_back(std::move(item));
  if (!edge.waiting) pump(request, edge);
  if (request.phase != Request::Phase::kLive) return;
  const Status status = check_waiting(request);
  if (!status.ok()) fail(request, status);
}

void StageLoop::watch_congestion(Request& request) {
  const std::size_t part = request.congested ? 2 : 1;
  const bool congested =
      request.waiting_chunks >= loop::kCongestedChunks / part || request.waiting_bytes >= loop::kCongestedBytes / part;
  if (congested == request.congested) return;
  request.congested = congested;
  doors_.worker->congest(request.id, congested);
}

Status StageLoop::check_waiting(const Request& request) const {
  if (request.waiting_chunks > loop::kMaxWaitingChunks) {
    return error(StatusCode::kResourceExhausted, "{} chunks wait for their receivers; wanted at most {}",
                 request.waiting_chunks, loop::kMaxWaitingChunks);
  }
  // One that is larger by itself may wait alone: the relay decides about it.
  std::size_t items = 0;
  for (const auto& [target, edge] : request.out) items += edge.queue.size();
  if (request.waiting_bytes > loop::kMaxWaitingBytes && items > 1) {
    return error(StatusCode::kResourceExhausted, "{} bytes wait for their receivers; wanted at most {}",
                 request.waiting_bytes, loop::kMaxWaitingBytes);
  }
  return ok_status();
}

// Sends what can go now.
void StageLoop::pump(Request& request, OutEdge& edge) {
  while (!edge.queue.empty()) {
    const OutItem& item = edge.queue.front();
    if (window_is_full(edge, item)) return;  // an acknowledgement goes on
    const Status status = send_front(request, edge);
    if (no_room(status)) {
      ++counters_.refusals;
      edge.waiting = true;
      waiting_edges_.emplace_back(request.id, edge.target);
      retry_ms_ = std::min(retry_ms_, now_ms_ + loop::kRetryMs);
      return;
    }
    if (!status.ok()) {
      const std::string whom = edge.target.empty() ? "to the coordinator" : fmt::format("to '{}'", edge.target);
      return fail(request, status.with_prefix(whom));
    }
    sent(request, edge);
  }
  maybe_over(request);
}

// kResourceExhausted: not now. Any other error is the request's.
Status StageLoop::send_front(Request& request, OutEdge& edge) {
  ASSIGN_OR_RETURN(const wire::Peer* to, receiver(request, edge));
  OutItem& item = edge.queue.front();
  if (!item.message) RETURN_IF_ERROR(prepare(request, edge, item, *to));
  const int64_t left_ms = request.deadline_ms - now_ms_;
  if (left_ms <= 0) return error(StatusCode::kDeadline, "the request's time was over before the send");
  if (auto* data = std::get_if<wire::DataReady>(&*item.message)) data->timeout_ms = left_ms;
  Outbox* door = doors_.coordinator.get();
  if (!edge.target.empty()) {
    ASSIGN_OR_RETURN(door, book_.door(*to));
  }
  const Status status = door->send(*item.message);
  if (status.code() != StatusCode::kUnavailable) {
    edge.absent_since_ms.reset();
    return status;
  }
  // The lease decides how long a coordinator may be away.
  if (edge.target.empty()) return Status(StatusCode::kResourceExhausted, status.message());
  return absent(edge, status.message());
}

// For a while it is waited for.
Status StageLoop::absent(OutEdge& edge, const std::string& what) {
  if (!edge.absent_since_ms) edge.absent_since_ms = now_ms_;
  if (now_ms_ - *edge.absent_since_ms < loop::kPeerWaitMs) return Status(StatusCode::kResourceExhausted, what);
  return error(StatusCode::kUnavailable, "{}, for {} ms now", what, now_ms_ - *edge.absent_since_ms);
}

// A stage with one replica needs no hop.
Result<wire::RouteHop> StageLoop::hop_to(const Request& request, const std::string& target) const {
  for (const wire::RouteHop& hop : request.route) {
    if (hop.stage == target) return hop;
  }
  const auto replicas = config_.replicas.find(target);
  if (replicas == config_.replicas.end() || replicas->second <= 1) return wire::RouteHop{.stage = target};
  return internal_error("the request's route has no replica of it; wanted one of {}", replicas->second);
}

// The replica that this request's edge goes to.
Result<const wire::Peer*> StageLoop::receiver(const Request& request, OutEdge& edge) {
  if (edge.target.empty()) {
    const wire::Peer* listed = book_.find(config_.coordinator.stage, config_.coordinator.replica);
    return !config_.coordinator.stage.empty() && listed ? listed : &config_.coordinator;
  }
  ASSIGN_OR_RETURN(const wire::RouteHop hop, hop_to(request, edge.target));
  const uint32_t replica = hop.replica;
  const wire::Peer* peer = book_.find(edge.target, replica);
  if (!peer || peer->incarnation < hop.incarnation)
    return absent(edge, fmt::format("replica {} is not in the table of peers", replica));
  // The table may be older than the world; the coordinator ends what really waits for the dead.
  if (!peer->up && !edge.to) return absent(edge, fmt::format("replica {} is down", replica));
  if (!peer->up) return error(StatusCode::kUnavailable, "replica {} is down", replica);
  if (!edge.to && hop.incarnation != 0) edge.to = loop::EdgeEnd{replica, hop.incarnation};
  const loop::EdgeEnd end{replica, peer->incarnation};
  if (!edge.to) edge.to = end;
  if (edge.to != end) return error(StatusCode::kUnavailable, "replica {} has died and come back", replica);
  return peer;
}

// The put, where there is something to put, and the message that tells of it.
Status StageLoop::prepare(Request& request, OutEdge& edge, OutItem& item, const wire::Peer& to) {
  if (!std::holds_alternative<std::monostate>(item.delta)) {
    item.message = build(request, edge, item, {});
    return ok_status();
  }
  wire::Payload payload;
  payload.tree.bytes = std::move(item.lifted.tree);
  payload.tensors = std::move(item.lifted.tensors);
  std::size_t total = 0;
  for (const SharedBytes& part : item.lifted.parts) {
    payload.part_bytes.push_back(part.size_bytes());
    total += part.size_bytes();
  }
  Status status;
  if (total > 0) {
    Result<loop::ChosenRelay> relay =
        loop::choose_relay(config_.self, to, doors_.relays, config_.spec.relay.backend, item.lifted.parts);
    RETURN_IF_ERROR(relay.status());
    PutRequest put{.parts = item.lifted.parts, .request = request.id, .destination = relay->address};
    loop::CallPurpose purpose{.kind = loop::CallPurpose::Kind::kPut, .request = request.id, .edge = edge.target};
    purpose.chunk = is_chunk(item);
    purpose.chunk_id = item.chunk_id;
    Result<std::string> descriptor = calls_.put(*relay->relay, std::move(put), std::move(purpose));
    if (descriptor.ok()) {
      ++request.calls;
      payload.relay = relay->name;
      payload.descriptor.bytes = std::move(*descriptor);
    }
    status = descriptor.status();
  }
  if (!status.ok()) {  // the next try begins anew
    item.lifted.tree = std::move(payload.tree.bytes);
    item.lifted.tensors = std::move(payload.tensors);
    return status;
  }
  item.lifted.parts.clear();  // the relay has them
  item.message = build(request, edge, item, std::move(payload));
  return ok_status();
}

wire::Message StageLoop::build(const Request& request, OutEdge& edge, OutItem& item, wire::Payload payload) {
  switch (item.kind) {
    case OutItem::Kind::kStreamOut:
      return stream_out(request.id, origin(), item, std::move(payload));
    case OutItem::Kind::kComplete:
      return wire::Complete{
          .id = request.id, .from = origin(), .result = std::move(payload), .chunks = request.client_chunks};
    default:
      break;
  }
  wire::DataReady message{.id = request.id, .from = origin(), .to = edge.target};
  if (!std::exchange(edge.opened, true)) message.terminals = request.terminals, message.route = request.route;
  message.kind = item.kind == OutItem::Kind::kPayload ? wire::DataKind::kPayload
                 : item.kind == OutItem::Kind::kChunk ? wire::DataKind::kChunk
                                                      : wire::DataKind::kDone;
  if (item.kind != OutItem::Kind::kPayload) message.chunk_id = item.chunk_id;
  if (auto* tokens = std::get_if<wire::TokenDelta>(&item.delta)) {
    message.tokens = std::move(*tokens);
  } else if (auto* text = std::get_if<wire::TextDelta>(&item.delta)) {
    message.text = std::move(*text);
  } else if (item.kind != OutItem::Kind::kDone) {
    message.payload = std::move(payload);
  }
  return message;
}

// The head of the queue has left.
void StageLoop::sent(Request& request, OutEdge& edge) {
  const OutItem& item = edge.queue.front();
  request.waiting_bytes -= item.size_bytes;
  if (is_chunk(item)) {
    --request.waiting_chunks;
    ++edge.sent;
    ++counters_.chunks_out;
  }
  if (item.kind == OutItem::Kind::kStreamOut) {
    ++request.client_chunks;
    edge.client_bytes.push_back(item.size_bytes);
    edge.client_bytes_sum += item.size_bytes;
  }
  if (item.kind == OutItem::Kind::kDone) edge.done_sent = true;
  if (item.kind == OutItem::Kind::kPayload || item.kind == OutItem::Kind::kComplete) edge.payload_sent = true;
  edge.queue.pop_front();
  watch_congestion(request);
}

// A put whose reader has said that it has the bytes did its work, however it ends.
void StageLoop::put_ended(Request& request, const loop::CallEnd& end) {
  if (end.status.ok()) return;
  const auto edge = request.out.find(end.purpose.edge);
  const bool known = edge != request.out.end();
  const bool acked =
      known && (end.purpose.chunk ? end.purpose.chunk_id < edge->second.acked : edge->second.payload_acked);
  if (acked) {
    ++counters_.late_put_errors;
    return;
  }
  const std::string whom = end.purpose.edge.empty() ? "to the coordinator" : fmt::format("to '{}'", end.purpose.edge);
  fail(request, end.status.with_prefix(whom));
}

// Everything that found no room, in the order of waiting; what finds none again waits behind the others.
void StageLoop::retry() {
  retry_ms_ = loop::kNoWake;
  flush_notices();
  std::deque<std::pair<ReqId, std::string>> edges;
  edges.swap(waiting_edges_);
  for (const auto& [id, target] : edges) {
    Request* request = live(id);
    if (!request) continue;
    OutEdge& edge = request->out.at(target);
    edge.waiting = false;
    pump(*request, edge);
  }
  std::deque<WaitingGet> gets;
  gets.swap(waiting_gets_);
  for (WaitingGet& get : gets) {
    Request* request = live(get.purpose.request);
    if (!request) continue;
    if (get.purpose.kind == loop::CallPurpose::Kind::kGetPayload) --request->fetching_payloads;  // fetch() counts anew
    fetch(*request, std::move(get.purpose), std::move(get.payload));
  }
  std::deque<ReqId> line;
  line.swap(worker_line_);
  for (const ReqId id : line) {
    const auto found = requests_.find(id);
    if (found != requests_.end()) post_events(*found->second);
  }
}

}  // namespace millrace
