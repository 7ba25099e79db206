#include "stages/loop/intake.h"

#include <algorithm>
#include <utility>

#include "base/trace.h"
#include "stages/loop/request_span.h"
#include "wire/limits.h"

namespace millrace::loop {

Status Intake::on_submit(wire::Submit message) {
  if (!context_.config.entry && !message.generate) {
    ++context_.counters.misaddressed;
    return ok_status();
  }
  // A repeated Submit starts nothing, nor does one that its abort has overtaken: the tombstone is here then.
  if (requests_.find(message.id) || requests_.tombstones().find(message.id)) {
    ++context_.counters.repeated;
    return ok_status();
  }
  LoopRequest* request = begin(message.id, {.terminals = std::move(message.terminals),
                                            .timeout_ms = message.timeout_ms,
                                            .route = std::move(message.route),
                                            .traceparent = std::move(message.traceparent)});
  if (!request) return ok_status();
  if (message.generate) return fan_in_.on_submit(*request, std::move(*message.generate));
  return fan_in_.on_submit(*request, std::move(message.payload));
}

Status Intake::on_chunk(const wire::Origin& from, wire::Chunk& chunk) {
  const StageLoopConfig& config = context_.config;
  const bool is_result = std::holds_alternative<wire::StageResult>(chunk.body);
  const bool is_predecessor = contains(is_result ? config.payload_from : config.stream_from, from.stage);
  if (!is_predecessor || !wire::validate(chunk, false).ok()) {
    ++context_.counters.misaddressed;
    return ok_status();
  }
  // The sequence of these looks: a live request, one that ends, a tombstone, then a new one. The first chunk of any
  // edge begins a request, since the chunks of several senders come in no agreed sequence.
  LoopRequest* request = requests_.find(chunk.id);
  if (request && !request->is_live()) return on_late_chunk(Ended::kFailed, from, chunk), ok_status();
  if (!request) {
    if (const Tombstone* ended = requests_.tombstones().find(chunk.id)) {
      return on_late_chunk(ended->how, from, chunk), ok_status();
    }
    // Without an opening an earlier chunk is lost, and the request fails below.
    request = begin(chunk.id, std::move(chunk.opening).value_or(wire::Opening{}));
  }
  return request ? on_chunk_of(*request, from, chunk) : ok_status();
}

Status Intake::on_chunk_of(LoopRequest& request, const wire::Origin& from, wire::Chunk& chunk) {
  // A Failure has no number in its stream, so it is looked at before check_number().
  if (const auto* failure = std::get_if<wire::Failure>(&chunk.body)) {
    if (!streams_.has_end_of(request, from)) return Status(failure->code, failure->message);
    ++context_.counters.late;  // InputAcks::answer_repeated() of the sender, which our repetition crossed
    return ok_status();
  }
  if (const auto* sent = std::get_if<wire::SentCount>(&chunk.body)) {
    return InputAcks::check_sent(request, from, sent->count);
  }
  if (auto* result = std::get_if<wire::StageResult>(&chunk.body)) {
    return fan_in_.on_result(request, from, chunk, std::move(result->payload));
  }
  if (std::holds_alternative<wire::StreamEnd>(chunk.body)) return streams_.on_end(request, from, chunk);
  return streams_.on_chunk(request, from, chunk);
}

Status Intake::on_fetched(LoopRequest& request, CallEnd& end) {
  if (request.trace && end.status.ok()) request.trace->relay_bytes_in += wire::relay_bytes(*end.purpose.payload);
  ASSIGN_OR_RETURN(Value value, Fetches::value_of(end));
  if (end.purpose.kind == CallPurpose::Kind::kGetPayload) {
    return fan_in_.arrived(request, end.purpose.edge, std::move(value));
  }
  return streams_.arrived(request, end.purpose.edge, end.purpose.seq, std::move(value));
}

Status Intake::retry(LoopRequest& request, Fetches::Waiting get) {
  if (get.purpose.kind == CallPurpose::Kind::kGetPayload) {
    return fan_in_.fetch(request, std::move(get.purpose), std::move(get.payload));
  }
  return streams_.fetch(request, std::move(get.purpose), std::move(get.payload));
}

Status Intake::check_begin(int64_t limit_ms) const {
  // The time left travels as a duration, as hosts share no clock; below 0 it was over when the message left.
  if (limit_ms < 0) return error(StatusCode::kDeadline, "the request came {} ms too late", -limit_ms);
  const auto most = static_cast<std::size_t>(std::max(context_.config.spec.resources.max_requests, 1));
  if (requests_.size() >= most) {
    return error(StatusCode::kResourceExhausted, "{} requests are in the stage; wanted at most {}",
                 requests_.size() + 1, most);
  }
  if (context_.is_draining) return error(StatusCode::kUnavailable, "the stage is shutting down");
  return ok_status();
}

LoopRequest* Intake::begin(ReqId id, wire::Opening opening) {
  const int64_t limit_ms = opening.timeout_ms == 0 ? kDefaultTimeoutMs : std::min(opening.timeout_ms, kMaxTimeoutMs);
  ++context_.counters.received;
  if (const Status refused = check_begin(limit_ms).with_prefix(context_.stage()); !refused.ok()) {
    ++context_.counters.failed;
    // Chunks of other senders follow: without a tombstone each would be admitted and refused anew.
    requests_.tombstones().add(id, Ended::kFailed, context_.now_ms);
    add_refused_span(context_, opening.traceparent, refused);
    notices_.add(wire::Chunk{.id = id, .body = wire::Failure{refused.code(), refused.message()}});
    return nullptr;
  }
  LoopRequest& request = requests_.add(id, context_.now_ms + limit_ms);
  request.terminals = std::move(opening.terminals);
  request.route = std::move(opening.route);
  begin_span(context_, request, std::move(opening.traceparent));
  trace::async_begin("request in a stage", "stage", context_.trace_id(id));
  return &request;
}

void Intake::on_late_chunk(Ended how, const wire::Origin& from, const wire::Chunk& chunk) {
  ++context_.counters.late;
  // Fetched and dropped: the sender keeps the bytes, and its credit, until they are read.
  if (const wire::Payload* payload = wire::payload_of(chunk.body)) fetches_.drain(chunk.id, *payload);
  // Only after a result: its sender still waits for the window. That of a failed or aborted request is being ended.
  if (how != Ended::kFinished || !wire::is_numbered(chunk.body)) return;
  acks_.acknowledge_ended(chunk.id, from, chunk.seq + 1);
}

}  // namespace millrace::loop
