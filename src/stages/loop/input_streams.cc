#include "stages/loop/input_streams.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "stages/loop/detach.h"
#include "wire/limits.h"

namespace millrace::loop {
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

// Why the chunk cannot be the next one of its edge. OK: it is, or it was here before.
Status check_number(const InEdge& edge, const EdgeEnd& source, const std::string& from, const wire::Chunk& chunk) {
  if (edge.source != source) {
    return error(StatusCode::kConflict, "two replicas of '{}' send to one request: {} and {}", from,
                 edge.source.replica, source.replica);
  }
  // A connection over tcp that was silent for 1.5 s is given up with all that was under way, while the leases of both
  // ends may hold: the numbers are what shows it (docs/control-plane.md).
  if (chunk.seq > edge.next) {
    return error(StatusCode::kUnavailable, "chunk {} of '{}' came; wanted chunk {}: one is lost", chunk.seq, from,
                 edge.next);
  }
  if (chunk.seq < edge.next) {
    if (was_here(edge, chunk.body)) return ok_status();
    return error(StatusCode::kUnavailable, "'{}' ended after {} chunks; {} have come", from, chunk.seq, edge.next);
  }
  if (!edge.has_result && (!edge.total || std::holds_alternative<wire::StageResult>(chunk.body))) return ok_status();
  // A second end contradicts the first one: the sender counts other chunks than came.
  const bool is_end = std::holds_alternative<wire::StreamEnd>(chunk.body);
  return error(is_end ? StatusCode::kUnavailable : StatusCode::kConflict,
               "chunk {} of '{}' came after the end of {} chunks", chunk.seq, from, edge.next);
}

}  // namespace

Result<InEdge*> InputStreams::next_on_edge(LoopRequest& request, const wire::Origin& from, const wire::Chunk& chunk) {
  const EdgeEnd source{from.replica, from.incarnation};
  const auto [entry, is_new] = request.in.edges.try_emplace(from.stage);
  InEdge& edge = entry->second;
  if (is_new) edge.source = source;
  RETURN_IF_ERROR(check_number(edge, source, from.stage, chunk));
  if (chunk.seq == edge.next) return &edge;
  ++context_.counters.repeated;
  return nullptr;
}

Status InputStreams::on_chunk(LoopRequest& request, const wire::Origin& from, wire::Chunk& chunk) {
  ASSIGN_OR_RETURN(InEdge* const edge, next_on_edge(request, from, chunk));
  if (!edge) return ok_status();
  edge->streams = true;
  // A sender that keeps to its window never gets here; one that does not must not fill this process.
  if (edge->next - edge->acked >= wire::kMaxUnackedChunks) {
    return error(StatusCode::kResourceExhausted, "'{}' has {} chunks unacknowledged; wanted at most {}", from.stage,
                 edge->next - edge->acked + 1, wire::kMaxUnackedChunks);
  }
  ++edge->next;
  acks_.schedule_sweep();
  if (deliver_now(request, from.stage, *edge, chunk.body)) return ok_status();
  // An empty entry keeps the position of a value that is being fetched: later chunks wait behind it.
  std::optional<Body>& held = edge->held[chunk.seq];
  if (auto* value = std::get_if<wire::StreamValue>(&chunk.body)) {
    RETURN_IF_ERROR(fetch(
        request, {.kind = CallPurpose::Kind::kGetChunk, .request = request.id, .edge = from.stage, .seq = chunk.seq},
        std::move(value->payload)));
  } else {
    held = take_delta(chunk.body);
    deliver(request);
  }
  return check_payload_first(request);
}

Status InputStreams::fetch(LoopRequest& request, CallPurpose purpose, wire::Payload payload) {
  ASSIGN_OR_RETURN(std::optional<Value> value, fetches_.fetch(request, purpose, std::move(payload)));
  return value ? arrived(request, purpose.edge, purpose.seq, std::move(*value)) : ok_status();
}

// The fast path for per-token deltas: a delta whose turn it is. False: it waits, as all else does.
bool InputStreams::deliver_now(LoopRequest& request, const std::string& from, InEdge& edge, wire::ChunkBody& body) {
  if (std::holds_alternative<wire::StreamValue>(body) || !edge.held.empty() || request.work.resulted) return false;
  if (!may_deliver(request)) return false;
  Body delta = take_delta(body);
  // Refused, the delta is untouched and takes the queue, behind which nothing of this edge is held.
  if (!work_.add_now(request, from, edge, delta)) {
    work_.add(request, {.kind = WorkEvent::Kind::kChunk, .from = from, .body = std::move(delta)});
  }
  return true;
}

Status InputStreams::on_end(LoopRequest& request, const wire::Origin& from, const wire::Chunk& chunk) {
  ASSIGN_OR_RETURN(InEdge* const edge, next_on_edge(request, from, chunk));
  if (!edge) return ok_status();
  edge->streams = true;
  edge->total = edge->next++;
  deliver(request);
  return check_payload_first(request);
}

Status InputStreams::arrived(LoopRequest& request, const std::string& from, uint64_t seq, Value value) {
  if (!request.in.started) detach(value);  // it waits for the payload, in the loop or in the worker
  request.in.edges.at(from).held[seq] = std::move(value);
  deliver(request);
  return ok_status();
}

void InputStreams::accept_result(InEdge& edge) {
  ++edge.next;
  edge.has_result = true;
}

void InputStreams::result_arrived(LoopRequest& request, const std::string& from) {
  InEdge& edge = request.in.edges.at(from);
  // Only now may the result be acknowledged: until its bytes are here the sender must keep them.
  edge.result_here = true;
  acks_.acknowledge_if_due(request.id, from, edge);
}

void InputStreams::deliver(LoopRequest& request) {
  if (!request.work.resulted && !may_deliver(request)) return;
  for (auto& [from, edge] : request.in.edges) deliver(request, from, edge);
  report_complete_inputs(request);
}

void InputStreams::deliver(LoopRequest& request, const std::string& from, InEdge& edge) {
  // In sequence, while the values are here: a gap is a fetch that has not ended.
  while (!edge.held.empty() && edge.held.begin()->second) {
    Body chunk = std::move(*edge.held.begin()->second);
    edge.held.erase(edge.held.begin());
    if (request.work.resulted) {
      WorkQueue::skip(edge);
      continue;
    }
    work_.add(request, {.kind = WorkEvent::Kind::kChunk, .from = from, .body = std::move(chunk)});
  }
  const bool is_complete = edge.total && edge.held.empty();
  if (is_complete && !edge.end_queued && !request.work.resulted) {
    edge.end_queued = true;
    work_.add(request, {.kind = WorkEvent::Kind::kChunksDone, .from = from});
  }
  acks_.acknowledge_if_due(request.id, from, edge);
}

Status InputStreams::check_payload_first(const LoopRequest& request) const {
  if (request.work.resulted || may_deliver(request) || request.in.fetches_payload()) return ok_status();
  const auto stream = first_stream(request.in.edges);
  if (stream == request.in.edges.end()) return ok_status();
  return error(StatusCode::kConflict,
               "'{}' began to stream before the payload was here; can_accept_stream_before_payload is false",
               stream->first);
}

void InputStreams::drop(LoopRequest& request) {
  for (auto& [from, edge] : request.in.edges) edge.held.clear();
}

bool InputStreams::has_end_of(const LoopRequest& request, const wire::Origin& from) {
  const auto edge = request.in.edges.find(from.stage);
  return edge != request.in.edges.end() && edge->second.source == EdgeEnd{from.replica, from.incarnation} &&
         edge->second.is_complete();
}

std::string InputStreams::lost_sender(const LoopRequest& request) const {
  for (const auto& [from, edge] : request.in.edges) {
    if (!edge.streams || edge.total) continue;  // all of it is on its way
    if (context_.book.standing(from, edge.source.replica, edge.source.incarnation) == Standing::kGone) return from;
  }
  return {};
}

// A stream that the spec has and that has not begun may still come: its sender knows whether.
bool InputStreams::has_all_of(const LoopRequest& request, const std::string& source) const {
  if (request.work.resulted) return true;
  if (contains(context_.config.payload_from, source) && !request.in.started) return false;
  if (!contains(context_.config.stream_from, source)) return true;
  const auto stream = request.in.edges.find(source);
  return stream != request.in.edges.end() && stream->second.total && stream->second.held.empty();
}

// Reported when the list has grown: at most once for each source.
void InputStreams::report_complete_inputs(LoopRequest& request) {
  if (request.in.complete == sources_.size()) return;
  const auto is_here = [&](const std::string& source) { return has_all_of(request, source); };
  const auto here = static_cast<std::size_t>(std::count_if(sources_.begin(), sources_.end(), is_here));
  if (here == request.in.complete) return;
  request.in.complete = here;
  wire::InputsComplete complete;
  std::copy_if(sources_.begin(), sources_.end(), std::back_inserter(complete.sources), is_here);
  notices_.add(wire::Chunk{.id = request.id, .body = std::move(complete)});
}

}  // namespace millrace::loop
