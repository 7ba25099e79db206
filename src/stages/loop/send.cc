// Out of the stage: one queue for each request and receiver. What finds no room stays at its head and is tried again;
// no other queue waits for it.
#include <algorithm>

#include "base/log.h"
#include "payload/inline_parts.h"
#include "stages/stage_loop.h"
#include "wire/limits.h"

namespace millrace {

using loop::OutEdge;
using loop::OutItem;

namespace {

bool is_stream_chunk(const OutItem& item) { return item.kind == OutItem::Kind::kValue; }
bool is_for_later(const Status& status) { return status.code() == StatusCode::kResourceExhausted; }

// The window of a stream: so many chunks, and to the client so many bytes, may be unacknowledged. One chunk that is
// larger by itself goes alone.
bool window_is_full(const OutEdge& edge, const OutItem& item) {
  if (!is_stream_chunk(item)) return false;
  if (edge.sent - edge.acked >= wire::kMaxUnackedChunks) return true;
  return edge.client_bytes_sum > 0 && edge.client_bytes_sum + item.size_bytes > wire::kMaxUnackedClientBytes;
}

std::string receiver_name(const std::string& stage) {
  return stage.empty() ? "to the coordinator" : fmt::format("to '{}'", stage);
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
  if (is_stream_chunk(item)) ++request.waiting_chunks;
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

// Puts what can go now into the receiver's batch.
void StageLoop::pump(Request& request, OutEdge& edge) {
  while (!edge.queue.empty()) {
    const OutItem& item = edge.queue.front();
    if (window_is_full(edge, item)) return;  // an acknowledgement goes on
    const Status status = send_front(request, edge);
    if (is_for_later(status)) {
      ++counters_.refusals;
      edge.waiting = true;
      waiting_edges_.emplace_back(request.id, edge.target);
      retry_ms_ = std::min(retry_ms_, now_ms_ + loop::kRetryMs);
      return;
    }
    if (!status.ok()) return fail(request, status.with_prefix(receiver_name(edge.target)));
    sent(request, edge);
  }
  maybe_over(request);
}

// kResourceExhausted: not now. Any other error is the request's.
Status StageLoop::send_front(Request& request, OutEdge& edge) {
  ASSIGN_OR_RETURN(const wire::Peer* to, receiver(request, edge));
  const loop::Outgoing::Receiver address = address_of(edge);
  if (const Status held = outgoing_.held(address); !held.ok()) return later(edge, held);
  OutItem& item = edge.queue.front();
  if (!item.chunk) RETURN_IF_ERROR(prepare(request, edge, item, *to));
  const int64_t left_ms = request.deadline_ms - now_ms_;
  if (left_ms <= 0) return error(StatusCode::kDeadline, "the request's time was over before the send");
  if (item.chunk->opening) item.chunk->opening->timeout_ms = left_ms;
  if (!edge.target.empty()) RETURN_IF_ERROR(book_.door(*to).status());
  const Status status = outgoing_.append(address, *item.chunk, item.size_bytes);
  return status.ok() ? status : later(edge, status);
}

// The coordinator, or the replica that the edge is bound to.
loop::Outgoing::Receiver StageLoop::address_of(const OutEdge& edge) {
  if (!edge.to) return {};
  return {edge.target, edge.to->replica, edge.to->incarnation};
}

// A batch that its outbox refuses for now.
Status StageLoop::later(OutEdge& edge, const Status& refusal) {
  return is_for_later(refusal) ? refusal : absent(edge, refusal.message());
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

// The put, where there is something to put, and the chunk that describes it.
Status StageLoop::prepare(Request& request, OutEdge& edge, OutItem& item, const wire::Peer& to) {
  if (item.kind == OutItem::Kind::kEnd || !std::holds_alternative<std::monostate>(item.delta)) {
    item.chunk = build(request, edge, item, {});
    return ok_status();
  }
  wire::Payload payload;
  if (!put_inline(item.lifted.parts, payload)) RETURN_IF_ERROR(put(request, edge, item, to, payload));
  payload.tree.bytes = std::move(item.lifted.tree);
  payload.tensors = std::move(item.lifted.tensors);
  item.lifted.parts.clear();  // the relay has them, or the payload
  item.chunk = build(request, edge, item, std::move(payload));
  return ok_status();
}

Status StageLoop::put(Request& request, const OutEdge& edge, const OutItem& item, const wire::Peer& to,
                      wire::Payload& payload) {
  ASSIGN_OR_RETURN(const loop::ChosenRelay relay,
                   loop::choose_relay(config_.self, to, doors_.relays, config_.spec.relay.backend, item.lifted.parts));
  PutRequest put{.parts = item.lifted.parts, .request = request.id, .destination = relay.address};
  loop::CallPurpose purpose{
      .kind = loop::CallPurpose::Kind::kPut, .request = request.id, .edge = edge.target, .seq = edge.sent};
  ASSIGN_OR_RETURN(payload.descriptor.bytes, calls_.put(*relay.relay, std::move(put), std::move(purpose)));
  payload.relay = relay.name;
  ++request.calls;
  return ok_status();
}

wire::Chunk StageLoop::build(const Request& request, const OutEdge& edge, OutItem& item, wire::Payload payload) const {
  wire::Chunk chunk{.id = request.id, .seq = edge.sent};
  if (chunk.seq == 0 && !edge.target.empty()) {
    chunk.opening = wire::Opening{.terminals = request.terminals, .route = request.route};
  }
  if (auto* tokens = std::get_if<wire::TokenDelta>(&item.delta)) {
    chunk.body = std::move(*tokens);
  } else if (auto* text = std::get_if<wire::TextDelta>(&item.delta)) {
    chunk.body = std::move(*text);
  } else if (item.kind == OutItem::Kind::kValue) {
    chunk.body = wire::StreamValue{.modality = item.modality, .payload = std::move(payload)};
  } else if (item.kind == OutItem::Kind::kEnd) {
    chunk.body = wire::StreamEnd{};
  } else {
    chunk.body = wire::StageResult{.payload = std::move(payload)};
  }
  return chunk;
}

// A chunk of the edge's stream is in a batch.
void StageLoop::count_sent(OutEdge& edge, std::size_t size_bytes) {
  ++edge.sent;
  ++counters_.chunks_out;
  if (!edge.target.empty()) return;
  edge.client_bytes.push_back(size_bytes);
  edge.client_bytes_sum += size_bytes;
}

// The head of the queue is in a batch.
void StageLoop::sent(Request& request, OutEdge& edge) {
  const OutItem& item = edge.queue.front();
  request.waiting_bytes -= item.size_bytes;
  if (is_stream_chunk(item)) {
    --request.waiting_chunks;
    count_sent(edge, item.size_bytes);
  } else {
    ++edge.sent;
    edge.ended = true;
  }
  edge.queue.pop_front();
  watch_congestion(request);
}

// ---- batches

Status StageLoop::send_batch(const loop::Outgoing::Receiver& to, wire::Message& message) {
  if (auto* chunks = std::get_if<wire::ChunkBatch>(&message)) chunks->from = origin();
  if (auto* acks = std::get_if<wire::AckBatch>(&message)) acks->from = origin();
  Status status;
  if (to.stage.empty()) {
    status = doors_.coordinator->send(message);
    // The lease decides how long a coordinator may be away.
    if (status.code() == StatusCode::kUnavailable) status = Status(StatusCode::kResourceExhausted, status.message());
  } else {
    const wire::Peer* peer = book_.find(to.stage, to.replica);
    if (!peer || peer->incarnation != to.incarnation) {
      return error(StatusCode::kUnavailable, "replica {} is not in the table of peers", to.replica);
    }
    ASSIGN_OR_RETURN(Outbox * outbox, book_.door(*peer));
    status = outbox->send(message);
  }
  if (is_for_later(status) || status.code() == StatusCode::kUnavailable) ++counters_.refusals;
  return status;
}

// At the end of a step: all that it has made leaves, and what follows from that.
void StageLoop::flush() {
  for (int round = 0; round < loop::kMaxSettleRounds; ++round) {
    outgoing_.flush();
    on_sent();
    sweep();
    if (!outgoing_.any_open()) break;
  }
  if (outgoing_.any_open()) more_to_settle_ = true;
  if (outgoing_.any_held()) retry_ms_ = std::min(retry_ms_, now_ms_ + loop::kRetryMs);
}

void StageLoop::on_sent() {
  for (const loop::Outgoing::Sent& batch : outgoing_.take_results()) {
    const std::string& target = batch.receiver.stage;
    if (batch.ids.empty() && !batch.status.ok() && batch.status.code() != StatusCode::kUnavailable) {
      LOG_ERROR("{}: a batch {} cannot be sent: {}", config_.self.stage, receiver_name(target),
                batch.status.to_string());
    }
    for (const ReqId id : batch.ids) {
      Request* request = live(id);
      const auto edge = request ? request->out.find(target) : decltype(request->out.end())();
      if (!request || edge == request->out.end()) continue;
      if (batch.status.ok()) {
        edge->second.absent_since_ms.reset();
        ++edge->second.flushed;
        maybe_over(*request);
        continue;
      }
      const bool is_held = batch.status.code() == StatusCode::kUnavailable;
      const Status why = is_held ? absent(edge->second, batch.status.message()) : batch.status;
      if (!is_for_later(why)) fail(*request, why.with_prefix(receiver_name(target)));
    }
  }
}

// A put whose reader has said that it has the bytes did its work, however it ends.
void StageLoop::put_ended(Request& request, const loop::CallEnd& end) {
  if (end.status.ok()) return;
  const auto edge = request.out.find(end.purpose.edge);
  if (edge != request.out.end() && end.purpose.seq < edge->second.acked) {
    ++counters_.late_put_errors;
    return;
  }
  fail(request, end.status.with_prefix(receiver_name(end.purpose.edge)));
}

// Everything that found no room, in the order of waiting; what finds none again waits behind the others.
void StageLoop::retry() {
  retry_ms_ = loop::kNoWake;
  outgoing_.retry();
  on_sent();
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
