#include "stages/loop/edge_sender.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "payload/inline_parts.h"
#include "stages/loop/request_span.h"
#include "wire/limits.h"

namespace millrace::loop {
namespace {

bool is_stream_chunk(const OutItem& item) { return item.kind == OutItem::Kind::kValue; }
bool is_for_later(const Status& status) { return status.code() == StatusCode::kResourceExhausted; }

// The window of a stream: so many chunks, and to the client so many bytes, may be unacknowledged. One chunk that is
// larger by itself goes alone.
bool window_is_full(const OutEdge& edge, const OutItem& item) {
  // The end of a stream and a result always go: they are one each, and the receiver needs them to acknowledge the rest.
  if (!is_stream_chunk(item)) return false;
  if (edge.sent - edge.acked >= wire::kMaxUnackedChunks) return true;
  return edge.client_bytes_sum > 0 && edge.client_bytes_sum + item.size_bytes > wire::kMaxUnackedClientBytes;
}

std::string receiver_name(const std::string& stage) {
  return stage.empty() ? "to the coordinator" : fmt::format("to '{}'", stage);
}

// The coordinator, or the replica that the edge is bound to.
Outgoing::Receiver address_of(const OutEdge& edge) {
  if (!edge.to) return {};
  return {edge.target, edge.to->replica, edge.to->incarnation};
}

wire::ChunkBody body_of(OutItem& item, wire::Payload payload) {
  if (item.delta) return std::move(*item.delta);
  if (item.kind == OutItem::Kind::kEnd) return wire::StreamEnd{};
  if (item.kind == OutItem::Kind::kResult) return wire::StageResult{.payload = std::move(payload)};
  return wire::StreamValue{.modality = item.modality, .payload = std::move(payload)};
}

wire::Chunk make_chunk(const LoopRequest& request, const OutEdge& edge, OutItem& item, wire::Payload payload) {
  wire::Chunk chunk{.id = request.id, .seq = edge.sent};
  // The first chunk of an edge brings what the receiver has to know of the request; the coordinator knows it.
  if (chunk.seq == 0 && !edge.target.empty()) {
    chunk.opening = wire::Opening{.terminals = request.terminals, .route = request.route};
    if (request.trace) chunk.opening->traceparent = request.trace->traceparent;
  }
  chunk.body = body_of(item, std::move(payload));
  return chunk;
}

}  // namespace

void EdgeSender::set_targets(LoopRequest& request, std::vector<std::string> targets) {
  request.out.stream_targets = std::move(targets);
}

Status EdgeSender::add(LoopRequest& request, const std::string& target, OutItem item) {
  // A std::map: references to edges stay good while others are added.
  OutEdge& edge = request.out.edges[target];
  edge.target = target;
  if (is_stream_chunk(item)) ++request.out.waiting_chunks;
  request.out.waiting_bytes += item.size_bytes;
  if (target.empty()) request.out.waiting_client_bytes += item.size_bytes;
  update_congestion(request);
  edge.queue.push_back(std::move(item));
  if (!edge.waiting) RETURN_IF_ERROR(pump(request, edge));
  return check_waiting(request);
}

bool EdgeSender::append(LoopRequest& request, const std::string& target, Body& delta) {
  const auto found = request.out.edges.find(target);
  if (found == request.out.edges.end() || !found->second.may_append()) return false;
  OutEdge& edge = found->second;
  const std::size_t size_bytes = size_of_delta(delta);
  if (target.empty() && edge.client_bytes_sum + size_bytes > wire::kMaxUnackedClientBytes) return false;
  wire::Chunk chunk{.id = request.id, .seq = edge.sent, .body = take_delta(delta)};
  // `delta` as it was: the caller puts it into the queue instead.
  if (!outgoing_.append(address_of(edge), chunk, size_bytes).ok()) {
    delta = take_delta(chunk.body);
    return false;
  }
  count_sent(edge, size_bytes);
  return true;
}

void EdgeSender::update_congestion(LoopRequest& request) {
  // Hysteresis: a request that is congested stays so until half has left, or it would be switched with every chunk.
  RequestOutputs& out = request.out;
  const std::size_t part = out.congested ? 2 : 1;
  const bool congested = out.waiting_chunks >= kCongestedChunks / part || out.waiting_bytes >= kCongestedBytes / part ||
                         out.waiting_client_bytes >= kCongestedClientBytes / part;
  if (congested == out.congested) return;
  out.congested = congested;
  context_.env.worker->congest(request.id, congested);
}

Status EdgeSender::check_waiting(const LoopRequest& request) const {
  const RequestOutputs& out = request.out;
  if (out.waiting_chunks > kMaxWaitingChunks) {
    return error(StatusCode::kResourceExhausted, "{} chunks wait for their receivers; wanted at most {}",
                 out.waiting_chunks, kMaxWaitingChunks);
  }
  // One that is larger by itself may wait alone: the relay decides about it.
  std::size_t items = 0;
  for (const auto& [target, edge] : out.edges) items += edge.queue.size();
  if (out.waiting_bytes > kMaxWaitingBytes && items > 1) {
    return error(StatusCode::kResourceExhausted, "{} bytes wait for their receivers; wanted at most {}",
                 out.waiting_bytes, kMaxWaitingBytes);
  }
  return ok_status();
}

// Puts what can go now into the receiver's batch.
Status EdgeSender::pump(LoopRequest& request, OutEdge& edge) {
  while (!edge.queue.empty()) {
    if (window_is_full(edge, edge.queue.front())) return ok_status();  // an acknowledgement goes on
    const Status status = send_head(request, edge);
    if (is_for_later(status)) {
      ++context_.counters.refusals;
      edge.waiting = true;
      // By id and name and not by pointer: the request may be gone when its turn comes.
      waiting_edges_.emplace_back(request.id, edge.target);
      context_.retry_soon();
      return ok_status();
    }
    if (!status.ok()) return status.with_prefix(receiver_name(edge.target));
    head_sent(request, edge);
  }
  requests_.check(request);
  return ok_status();
}

// kResourceExhausted: not now. Any other error is the request's.
Status EdgeSender::send_head(LoopRequest& request, OutEdge& edge) {
  ASSIGN_OR_RETURN(const wire::Peer* to, receiver(request, edge));
  const Outgoing::Receiver address = address_of(edge);
  // Before the put: a chunk that cannot leave must not take a credit of the relay, which others need.
  if (const Status held = outgoing_.held(address); !held.ok()) return later(edge, held);
  OutItem& item = edge.queue.front();
  // Once. A chunk that was prepared and refused keeps its descriptor; a second put would cost a second credit.
  if (!item.chunk) RETURN_IF_ERROR(prepare(request, edge, item, *to));
  const int64_t left_ms = request.deadline_ms - context_.now_ms;
  if (left_ms <= 0) return error(StatusCode::kDeadline, "the request's time was over before the send");
  // At the moment of sending, as clocks of hosts differ: only the time that is left can travel.
  if (item.chunk->opening) item.chunk->opening->timeout_ms = left_ms;
  // An endpoint that cannot be connected fails this request here, not the batch with chunks of others.
  if (!edge.target.empty()) RETURN_IF_ERROR(context_.book.outbox(*to).status());
  const Status status = outgoing_.append(address, *item.chunk, item.size_bytes);
  return status.ok() ? status : later(edge, status);
}

// A batch that its outbox refuses for now.
Status EdgeSender::later(OutEdge& edge, const Status& refusal) {
  return is_for_later(refusal) ? refusal : absent(edge, refusal.message());
}

// For a while it is waited for.
Status EdgeSender::absent(OutEdge& edge, const std::string& what) {
  // Since the first refusal; on_sent() resets it when a batch has left.
  if (!edge.absent_since_ms) edge.absent_since_ms = context_.now_ms;
  const int64_t absent_ms = context_.now_ms - *edge.absent_since_ms;
  if (absent_ms < kPeerWaitMs) return Status(StatusCode::kResourceExhausted, what);
  return error(StatusCode::kUnavailable, "{}, for {} ms now", what, absent_ms);
}

// A stage with one replica needs no hop.
Result<wire::RouteHop> EdgeSender::hop_to(const LoopRequest& request, const std::string& target) const {
  for (const wire::RouteHop& hop : request.route) {
    if (hop.stage == target) return hop;
  }
  const auto replicas = context_.config.replicas.find(target);
  if (replicas == context_.config.replicas.end() || replicas->second <= 1) return wire::RouteHop{.stage = target};
  return internal_error("the request's route has no replica of it; wanted one of {}", replicas->second);
}

// The replica that this request's edge goes to.
Result<const wire::Peer*> EdgeSender::receiver(const LoopRequest& request, OutEdge& edge) {
  const wire::Peer& coordinator = context_.config.coordinator;
  if (edge.target.empty()) {
    const wire::Peer* listed = context_.book.find(coordinator.stage, coordinator.replica);
    // The table's entry knows its relays; without one the coordinator is reached as at the start.
    return !coordinator.stage.empty() && listed ? listed : &coordinator;
  }
  ASSIGN_OR_RETURN(const wire::RouteHop hop, hop_to(request, edge.target));
  const uint32_t replica = hop.replica;
  const wire::Peer* peer = context_.book.find(edge.target, replica);
  // The route was chosen by a newer table than ours, which is on its way.
  if (!peer || peer->incarnation < hop.incarnation) {
    return absent(edge, fmt::format("replica {} is not in the table of peers", replica));
  }
  // The table of peers may be stale; the coordinator ends the requests that need a replica which is lost.
  if (!peer->up && !edge.to) return absent(edge, fmt::format("replica {} is down", replica));
  if (!peer->up) return error(StatusCode::kUnavailable, "replica {} is down", replica);
  // Bound to the incarnation that the coordinator chose, even if a newer one is in the table: what others have sent to
  // the old one is lost, so the request cannot be completed by the new one.
  if (!edge.to && hop.incarnation != 0) edge.to = EdgeEnd{replica, hop.incarnation};
  const EdgeEnd end{replica, peer->incarnation};
  if (!edge.to) edge.to = end;
  if (edge.to != end) return error(StatusCode::kUnavailable, "replica {} has died and come back", replica);
  return peer;
}

// The put, where there is something to put, and the chunk that describes it.
Status EdgeSender::prepare(LoopRequest& request, OutEdge& edge, OutItem& item, const wire::Peer& to) {
  wire::Payload payload;
  if (item.has_payload()) {
    // Small parts travel in the message: a put and a get would cost more than their bytes.
    if (!put_inline(item.lifted.parts, payload)) RETURN_IF_ERROR(put(request, edge, item, to, payload));
    payload.tree.bytes = std::move(item.lifted.tree);
    payload.tensors = std::move(item.lifted.tensors);
    item.lifted.parts.clear();  // the relay has them, or the payload
  }
  item.chunk = make_chunk(request, edge, item, std::move(payload));
  return ok_status();
}

Status EdgeSender::put(const LoopRequest& request, const OutEdge& edge, const OutItem& item, const wire::Peer& to,
                       wire::Payload& payload) {
  const StageLoopConfig& config = context_.config;
  ASSIGN_OR_RETURN(const ChosenRelay relay,
                   choose_relay(config.self, to, context_.env.relays, config.spec.relay.backend, item.lifted.parts));
  // The parts are references; they stay in `item` too, because the put may be refused and tried again.
  PutRequest put{.parts = item.lifted.parts, .request = request.id, .destination = relay.address};
  CallPurpose purpose{.kind = CallPurpose::Kind::kPut, .request = request.id, .edge = edge.target, .seq = edge.sent};
  ASSIGN_OR_RETURN(payload.descriptor.bytes, calls_.put(*relay.relay, std::move(put), std::move(purpose)));
  payload.relay = relay.name;
  if (request.trace) {
    for (const SharedBytes& part : item.lifted.parts) request.trace->relay_bytes_out += part.size_bytes();
  }
  return ok_status();
}

// A chunk of the edge's stream is in a batch.
void EdgeSender::count_sent(OutEdge& edge, std::size_t size_bytes) {
  ++edge.sent;
  ++context_.counters.chunks_out;
  // Bytes are counted to the client alone: a stage's relays and the limits of its inputs bound what it holds.
  if (!edge.target.empty()) return;
  edge.client_bytes.push_back(size_bytes);
  edge.client_bytes_sum += size_bytes;
}

// The head of the queue is in a batch.
void EdgeSender::head_sent(LoopRequest& request, OutEdge& edge) {
  const OutItem& item = edge.queue.front();
  CHECK(request.out.waiting_bytes >= item.size_bytes);
  request.out.waiting_bytes -= item.size_bytes;
  if (edge.target.empty()) request.out.waiting_client_bytes -= item.size_bytes;
  if (is_stream_chunk(item)) {
    --request.out.waiting_chunks;
    count_sent(edge, item.size_bytes);
  } else {
    ++edge.sent;
    edge.ended = true;
    note_result(context_, request);
  }
  edge.queue.pop_front();
  update_congestion(request);
}

Status EdgeSender::on_ack(LoopRequest& request, const wire::Origin& from, const wire::Ack& ack) {
  const auto found = request.out.edges.find(from.stage);
  const bool client = from.stage.empty();
  const bool known =
      found != request.out.edges.end() && (client || found->second.to == EdgeEnd{from.replica, from.incarnation});
  // Of another incarnation, or of more than was sent: believing it would open the window for ever.
  if (!known || ack.count > found->second.sent) {
    context_.counters.unexpected +=
        ack.count > 0 ? 1 : 0;  // with 0 the receiver asks, perhaps before anything was sent
    return ok_status();
  }
  OutEdge& edge = found->second;
  // Counts, not single chunks: an acknowledgement that is lost is made good by the next one.
  for (; edge.acked < ack.count; ++edge.acked) {
    // Only streamed values are in this list; the end and the result have a number without an entry.
    if (edge.client_bytes.empty()) continue;
    edge.client_bytes_sum -= edge.client_bytes.front();
    edge.client_bytes.pop_front();
  }
  return edge.waiting ? ok_status() : pump(request, edge);
}

// A put whose reader has reported that it has the bytes did its work, however it ends.
Status EdgeSender::put_ended(const LoopRequest& request, const CallEnd& end) {
  if (end.status.ok()) return ok_status();
  const auto edge = request.out.edges.find(end.purpose.edge);
  // The receiver has the chunk; only the relay's own release was lost, by a death or a lease.
  if (edge != request.out.edges.end() && end.purpose.seq < edge->second.acked) {
    ++context_.counters.late_put_errors;
    return ok_status();
  }
  return end.status.with_prefix(receiver_name(end.purpose.edge));
}

Status EdgeSender::on_sent(const Outgoing::Sent& batch, LoopRequest& request) {
  const auto found = request.out.edges.find(batch.receiver.stage);
  if (found == request.out.edges.end()) return ok_status();
  OutEdge& edge = found->second;
  if (batch.status.ok()) {
    edge.absent_since_ms.reset();
    // For each numbered chunk that has left. A request is over when all have, not when they are in a batch.
    ++edge.flushed;
    if (request.work.resulted) requests_.check(request);
    return ok_status();
  }
  // The batch stays and is tried again; only after kPeerWaitMs its requests fail, one by one.
  const bool is_held = batch.status.code() == StatusCode::kUnavailable;
  const Status why = is_held ? absent(edge, batch.status.message()) : batch.status;
  return is_for_later(why) ? ok_status() : why.with_prefix(receiver_name(edge.target));
}

Status EdgeSender::retry(LoopRequest& request, const std::string& target) {
  OutEdge& edge = request.out.edges.at(target);
  edge.waiting = false;
  return pump(request, edge);
}

void EdgeSender::drop(LoopRequest& request) {
  // Puts that are open stay: RequestEnds cancels them, and their ends are collected as always.
  for (auto& [target, edge] : request.out.edges) edge.queue.clear();
  outgoing_.drop(request.id);
  request.out.waiting_bytes = request.out.waiting_client_bytes = request.out.waiting_chunks = 0;
  update_congestion(request);
}

// The coordinator's abort reaches all others.
void EdgeSender::report_failure(LoopRequest& request, const Status& why) {
  for (auto& [target, edge] : request.out.edges) {
    // Only receivers that know the request and still expect something of this edge.
    if (target.empty() || edge.flushed == 0 || edge.ended || !edge.to) continue;
    // Without a number: the chunks that were dropped before it leave no gap for the receiver to wait for.
    wire::Chunk chunk{.id = request.id, .body = wire::Failure{why.code(), why.message()}};
    const Status status = outgoing_.append(address_of(edge), chunk, 0);
    if (!status.ok()) LOG_DEBUG("'{}' does not get the failure: {}", target, status.to_string());
  }
}

std::string EdgeSender::lost_receiver(const LoopRequest& request) const {
  for (const auto& [target, edge] : request.out.edges) {
    // A receiver that has acknowledged everything may die: what it does with it is the coordinator's concern.
    const bool has_all = request.work.resulted && edge.queue.empty() && edge.acked == edge.sent;
    if (!edge.to || has_all) continue;
    if (context_.book.standing(target, edge.to->replica, edge.to->incarnation) == Standing::kGone) return target;
  }
  return {};
}

}  // namespace millrace::loop
