// Streams into the stage: numbers, order, acknowledgements.
#include <algorithm>
#include <iterator>

#include "stages/stage_loop.h"
#include "wire/limits.h"

namespace millrace {

using loop::InStream;

// The stream that a message belongs to. nullptr: the request has failed.
InStream* StageLoop::stream_of(Request& request, const wire::DataReady& message) {
  const loop::EdgeEnd source{message.from.replica, message.from.incarnation};
  const auto [entry, is_new] = request.in.try_emplace(message.from.stage);
  InStream& stream = entry->second;
  if (is_new) stream.source = source;
  if (stream.source == source) return &stream;
  fail(request, error(StatusCode::kConflict, "two replicas of '{}' stream to one request: {} and {}",
                      message.from.stage, stream.source.replica, source.replica));
  return nullptr;
}

void StageLoop::on_chunk_header(Request& request, wire::DataReady& message) {
  InStream* stream = stream_of(request, message);
  if (!stream) return;
  const std::string& from = message.from.stage;
  const uint64_t id = *message.chunk_id;
  if (id < stream->headers) {
    ++counters_.repeated;
    return;
  }
  if (stream->total) {
    return fail(request, error(StatusCode::kConflict, "chunk {} of '{}' came after the end of {} chunks", id, from,
                               *stream->total));
  }
  if (id != stream->headers) {
    return fail(request, error(StatusCode::kUnavailable, "chunk {} of '{}' came; wanted chunk {}: one is lost", id,
                               from, stream->headers));
  }
  if (stream->headers - stream->acked >= wire::kMaxUnackedChunks) {
    return fail(request, error(StatusCode::kResourceExhausted, "'{}' has {} chunks unacknowledged; wanted at most {}",
                               from, stream->headers - stream->acked + 1, wire::kMaxUnackedChunks));
  }
  ++stream->headers;
  stream->held[id] = std::nullopt;
  if (message.tokens || message.text) {
    stream->held[id] = message.tokens ? Body(std::move(*message.tokens)) : Body(std::move(*message.text));
    deliver(request);
    return watch_early(request);
  }
  fetch(request, {.kind = loop::CallPurpose::Kind::kGetChunk, .request = request.id, .edge = from, .chunk_id = id},
        std::move(*message.payload));
  watch_early(request);
}

void StageLoop::on_stream_end(Request& request, wire::DataReady& message) {
  InStream* stream = stream_of(request, message);
  if (!stream) return;
  const uint64_t total = *message.chunk_id;
  if (stream->total == total) {
    ++counters_.repeated;
    return;
  }
  if (stream->total || total != stream->headers) {
    return fail(request, error(StatusCode::kUnavailable, "'{}' ended its stream after {} chunks; {} have come",
                               message.from.stage, total, stream->total.value_or(stream->headers)));
  }
  stream->total = total;
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

// Said when the list has grown: at most once for each source.
void StageLoop::watch_gathered(Request& request) {
  if (request.phase != Request::Phase::kLive || request.gathered == sources_.size()) return;
  const auto is_here = [&](const std::string& source) { return has_all_of(request, source); };
  const auto here = static_cast<std::size_t>(std::count_if(sources_.begin(), sources_.end(), is_here));
  if (here == request.gathered) return;
  request.gathered = here;
  wire::Gathered message{.id = request.id, .from = origin()};
  std::copy_if(sources_.begin(), sources_.end(), std::back_inserter(message.sources), is_here);
  notify(std::move(message));
}

// A stream has begun, the worker must not see it before its payload, and no payload is on its way.
bool StageLoop::is_too_early(const Request& request) const {
  if (config_.spec.can_accept_stream_before_payload || request.started || request.resulted) return false;
  return !request.in.empty() && request.fetching_payloads == 0;
}

void StageLoop::watch_early(Request& request) {
  if (request.phase != Request::Phase::kLive || !is_too_early(request)) return;
  fail(request, error(StatusCode::kConflict,
                      "'{}' began to stream before the payload was here; can_accept_stream_before_payload is false",
                      request.in.begin()->first));
}

void StageLoop::deliver(Request& request) {
  if (!request.started && !request.resulted && !config_.spec.can_accept_stream_before_payload) return;
  for (auto& [from, stream] : request.in) {
    if (request.phase != Request::Phase::kLive) return;
    deliver(request, from, stream);
  }
  watch_gathered(request);
}

// All that is here and whose turn it is. What a worker with a result does not want any more counts as taken.
void StageLoop::deliver(Request& request, const std::string& from, InStream& stream) {
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

void StageLoop::acknowledge_if_due(ReqId id, const std::string& from, InStream& stream) {
  const uint64_t open = stream.delivered - stream.acked;
  if (open == 0) return;
  if (open < wire::kAckEveryChunks && stream.total != stream.delivered) {
    next_ack_ms_ = std::min(next_ack_ms_, now_ms_ + loop::kAckIdleMs);
    return;
  }
  acknowledge(id, from, stream.source, stream.delivered, &stream);
}

// Acknowledgements count from the start, so one that is lost or finds no room is made good by the next.
void StageLoop::acknowledge(ReqId id, const std::string& from, const loop::EdgeEnd& source,
                            std::optional<uint64_t> chunks, InStream* stream) {
  const wire::Peer* peer = book_.find(from, source.replica);
  if (!peer || !peer->up || peer->incarnation != source.incarnation) return;
  const Result<Outbox*> door = book_.door(*peer);
  if (!door.ok()) return;
  wire::Message ack = wire::DataAck{.id = id, .from = origin(), .to = from, .chunks = chunks};
  if (!stream) return static_cast<void>((*door)->send(ack).ok());
  if ((*door)->send(ack).ok()) {
    stream->acked = *chunks;
  } else {
    next_ack_ms_ = std::min(next_ack_ms_, now_ms_ + loop::kAckIdleMs);
  }
}

// What was delivered since the last acknowledgement: its sender may hold a lease on it.
void StageLoop::acknowledge_idle() {
  next_ack_ms_ = loop::kNoWake;
  for (const auto& [id, request] : requests_) {
    if (request->phase != Request::Phase::kLive) continue;
    for (auto& [from, stream] : request->in) {
      if (stream.acked < stream.delivered) acknowledge(id, from, stream.source, stream.delivered, &stream);
    }
  }
}

}  // namespace millrace
