// Streams into the stage: numbers, order, acknowledgements.
#include <algorithm>
#include <iterator>

#include "stages/stage_loop.h"
#include "wire/limits.h"

namespace millrace {

using loop::InEdge;

namespace {

// Whether a chunk of this kind can be the repetition of an earlier one.
bool was_here(const InEdge& edge, const wire::ChunkBody& body) {
  if (std::holds_alternative<wire::StreamEnd>(body)) return edge.total.has_value();
  return !std::holds_alternative<wire::StageResult>(body) || edge.has_result;
}

// An edge whose stream has begun; end(): none.
auto first_stream(const std::map<std::string, InEdge>& edges) {
  return std::find_if(edges.begin(), edges.end(), [](const auto& edge) { return edge.second.streams; });
}

}  // namespace

// The edge of a numbered chunk, where its number is the one that is wanted. nullptr: it came before, or the request has
// failed.
InEdge* StageLoop::next_on_edge(Request& request, const wire::Origin& from, const wire::Chunk& chunk) {
  const loop::EdgeEnd source{from.replica, from.incarnation};
  const auto [entry, is_new] = request.in.try_emplace(from.stage);
  InEdge& edge = entry->second;
  if (is_new) edge.source = source;
  Status status;
  if (edge.source != source) {
    status = error(StatusCode::kConflict, "two replicas of '{}' send to one request: {} and {}", from.stage,
                   edge.source.replica, source.replica);
  } else if (chunk.seq > edge.next) {
    status = error(StatusCode::kUnavailable, "chunk {} of '{}' came; wanted chunk {}: one is lost", chunk.seq,
                   from.stage, edge.next);
  } else if (chunk.seq < edge.next && !was_here(edge, chunk.body)) {
    status =
        error(StatusCode::kUnavailable, "'{}' ended after {} chunks; {} have come", from.stage, chunk.seq, edge.next);
  } else if (chunk.seq < edge.next) {
    ++counters_.repeated;
    return nullptr;
  } else if (edge.has_result || (edge.total && !std::holds_alternative<wire::StageResult>(chunk.body))) {
    // A second end contradicts the first one: the sender counts other chunks than came.
    const bool is_end = std::holds_alternative<wire::StreamEnd>(chunk.body);
    status = error(is_end ? StatusCode::kUnavailable : StatusCode::kConflict,
                   "chunk {} of '{}' came after the end of {} chunks", chunk.seq, from.stage, edge.next);
  }
  if (status.ok()) return &edge;
  fail(request, status);
  return nullptr;
}

void StageLoop::on_stream_chunk(Request& request, const wire::Origin& from, wire::Chunk& chunk) {
  InEdge* edge = next_on_edge(request, from, chunk);
  if (!edge) return;
  edge->streams = true;
  if (edge->next - edge->acked >= wire::kMaxUnackedChunks) {
    return fail(request, error(StatusCode::kResourceExhausted, "'{}' has {} chunks unacknowledged; wanted at most {}",
                               from.stage, edge->next - edge->acked + 1, wire::kMaxUnackedChunks));
  }
  ++edge->next;
  if (pass_delta(request, from.stage, *edge, chunk)) return;
  std::optional<Body>& held = edge->held[chunk.seq];
  if (auto* value = std::get_if<wire::StreamValue>(&chunk.body)) {
    fetch(request,
          {.kind = loop::CallPurpose::Kind::kGetChunk, .request = request.id, .edge = from.stage, .seq = chunk.seq},
          std::move(value->payload));
    return watch_early(request);
  }
  auto* tokens = std::get_if<wire::TokenDelta>(&chunk.body);
  held = tokens ? Body(std::move(*tokens)) : Body(std::get<wire::TextDelta>(std::move(chunk.body)));
  deliver(request);
  watch_early(request);
}

// The short way of what passes for every token: a delta whose turn it is goes straight to the worker. False: it waits,
// as all else does.
bool StageLoop::pass_delta(Request& request, const std::string& from, InEdge& edge, wire::Chunk& chunk) {
  if (std::holds_alternative<wire::StreamValue>(chunk.body) || !edge.held.empty() || request.resulted) return false;
  if (!request.started && !config_.spec.can_accept_stream_before_payload) return false;
  if (!request.to_worker.empty() || request.in_worker_line || request.congested) return false;
  auto* tokens = std::get_if<wire::TokenDelta>(&chunk.body);
  loop::WorkEvent event{.kind = loop::WorkEvent::Kind::kChunk, .id = request.id, .from = from};
  event.body = tokens ? Body(std::move(*tokens)) : Body(std::get<wire::TextDelta>(std::move(chunk.body)));
  if (!doors_.worker->post(event, now_ms_)) {
    to_worker(request, std::move(event));
    return true;
  }
  chunk_posted(request, from, edge);
  return true;
}

void StageLoop::on_stream_end(Request& request, const wire::Origin& from, const wire::Chunk& chunk) {
  InEdge* edge = next_on_edge(request, from, chunk);
  if (!edge) return;
  edge->streams = true;
  edge->total = edge->next++;
  deliver(request);
  watch_early(request);
}

// Whether nothing more of this stage is needed here. A stream that the spec has and that has not begun may still come:
// its sender knows whether.
bool StageLoop::has_all_of(const Request& request, const std::string& source) const {
  if (request.resulted) return true;
  if (contains(config_.payload_from, source) && !request.started) return false;
  if (!contains(config_.stream_from, source)) return true;
  const auto stream = request.in.find(source);
  return stream != request.in.end() && stream->second.total && stream->second.held.empty();
}

// Reported when the list has grown: at most once for each source.
void StageLoop::report_inputs(Request& request) {
  if (request.phase != Request::Phase::kLive || request.inputs_complete == sources_.size()) return;
  const auto is_here = [&](const std::string& source) { return has_all_of(request, source); };
  const auto here = static_cast<std::size_t>(std::count_if(sources_.begin(), sources_.end(), is_here));
  if (here == request.inputs_complete) return;
  request.inputs_complete = here;
  wire::InputsComplete complete;
  std::copy_if(sources_.begin(), sources_.end(), std::back_inserter(complete.sources), is_here);
  notify(wire::Chunk{.id = request.id, .body = std::move(complete)});
}

// A stream has begun, the worker must not see it before its payload, and no payload is on its way.
bool StageLoop::is_too_early(const Request& request) const {
  if (config_.spec.can_accept_stream_before_payload || request.started || request.resulted) return false;
  return first_stream(request.in) != request.in.end() && request.fetching_payloads == 0;
}

void StageLoop::watch_early(Request& request) {
  if (request.phase != Request::Phase::kLive || !is_too_early(request)) return;
  fail(request, error(StatusCode::kConflict,
                      "'{}' began to stream before the payload was here; can_accept_stream_before_payload is false",
                      first_stream(request.in)->first));
}

void StageLoop::deliver(Request& request) {
  if (!request.started && !request.resulted && !config_.spec.can_accept_stream_before_payload) return;
  for (auto& [from, stream] : request.in) {
    if (request.phase != Request::Phase::kLive) return;
    deliver(request, from, stream);
  }
  report_inputs(request);
}

// All that is here and whose turn it is. What a worker with a result does not want any more counts as taken.
void StageLoop::deliver(Request& request, const std::string& from, InEdge& stream) {
  while (!stream.held.empty() && stream.held.begin()->second) {
    Body chunk = std::move(*stream.held.begin()->second);
    stream.held.erase(stream.held.begin());
    if (request.resulted) {
      ++stream.delivered;
      continue;
    }
    to_worker(request,
              {.kind = loop::WorkEvent::Kind::kChunk, .id = request.id, .from = from, .body = std::move(chunk)});
    if (request.phase != Request::Phase::kLive) return;
  }
  const bool whole = stream.total && stream.held.empty();
  if (whole && !stream.end_queued && !request.resulted) {
    stream.end_queued = true;
    to_worker(request, {.kind = loop::WorkEvent::Kind::kChunksDone, .id = request.id, .from = from});
  }
  acknowledge_if_due(request.id, from, stream);
}

void StageLoop::acknowledge_if_due(ReqId id, const std::string& from, InEdge& edge) {
  const uint64_t taken = edge.taken();
  if (taken == edge.acked) return;
  // The end and the result are acknowledged at once.
  if (taken - edge.acked < wire::kAckEveryChunks && taken == edge.delivered) {
    next_ack_ms_ = std::min(next_ack_ms_, now_ms_ + loop::kAckIdleMs);
    return;
  }
  acknowledge(id, from, edge.source, taken, &edge);
}

// Counts are from the start, so one that is lost or refused is made good by the next.
void StageLoop::acknowledge(ReqId id, const std::string& from, const loop::EdgeEnd& source, uint64_t count,
                            InEdge* edge) {
  const wire::Peer* peer = book_.find(from, source.replica);
  if (!peer || !peer->up || peer->incarnation != source.incarnation) return;
  const Status status = outgoing_.acknowledge({from, source.replica, source.incarnation}, {.id = id, .count = count});
  if (!edge) return;
  if (status.ok()) {
    edge->acked = count;
  } else {
    next_ack_ms_ = std::min(next_ack_ms_, now_ms_ + loop::kAckIdleMs);
  }
}

// What was taken since the last acknowledgement: its sender may hold a lease on it.
void StageLoop::acknowledge_idle() {
  next_ack_ms_ = loop::kNoWake;
  for (const auto& [id, request] : requests_) {
    if (request->phase != Request::Phase::kLive) continue;
    for (auto& [from, edge] : request->in) {
      if (edge.acked < edge.taken()) acknowledge(id, from, edge.source, edge.taken(), &edge);
    }
  }
}

}  // namespace millrace
