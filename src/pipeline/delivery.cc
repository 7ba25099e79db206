#include "pipeline/delivery.h"

#include <fmt/format.h>

#include <algorithm>
#include <variant>

#include "payload/inline_parts.h"

namespace millrace {
namespace {

// A stage may have put its name before the message already.
Status without_name(const wire::Failure& failure, const std::string& stage) {
  std::string_view why = failure.message;
  if (const std::string prefix = stage + ": "; why.starts_with(prefix)) why.remove_prefix(prefix.size());
  return Status(failure.code, std::string(why));
}

// A relay refuses a descriptor as invalid when its put is over or its writer is gone: the loss of a stage, and no fault
// of the client.
Status of_fetch(const Status& status, const std::optional<uint64_t>& chunk) {
  const Status why = status.with_prefix(chunk ? fmt::format("chunk {} could not be fetched", *chunk)
                                              : std::string("the result could not be fetched"));
  return why.code() == StatusCode::kInvalidArgument ? Status(StatusCode::kUnavailable, why.message()) : why;
}

}  // namespace

Delivery::Delivery(const PipelineSpec& spec, const StageGraph& graph, LiveRequests& requests, const Aborts& aborts,
                   Payloads& payloads, DeliveryLimits limits, ClientWindow::Send acknowledge)
    : spec_(spec),
      graph_(graph),
      requests_(requests),
      aborts_(aborts),
      limits_(limits),
      fetches_(payloads),
      window_(std::move(acknowledge)) {}

LiveRequest* Delivery::find_open(ReqId id) {
  LiveRequest* request = requests_.find(id);
  return request != nullptr && !request->answer.over ? request : nullptr;
}

void Delivery::begin(const LiveRequest& request, int64_t now_ms) {
  for (const auto& [stage, stream] : request.answer.streams) window_.open(request.id, request.route[stage], now_ms);
}

// ---- from the terminals

void Delivery::handle(std::size_t stage, std::size_t slot, wire::ChunkBatch& batch, int64_t now_ms) {
  CHECK(stage < spec_.stages.size());
  // Each request is flushed once, after the whole batch: a terminal sends several chunks of one in a step.
  std::vector<ReqId> changed;
  for (wire::Chunk& chunk : batch.chunks) {
    if (handle(stage, slot, chunk, now_ms)) changed.push_back(chunk.id);
  }
  std::sort(changed.begin(), changed.end());
  changed.erase(std::unique(changed.begin(), changed.end()), changed.end());
  for (const ReqId id : changed) flush(id, now_ms);
}

// True: the sink of its request may have something to take.
bool Delivery::handle(std::size_t stage, std::size_t slot, wire::Chunk& chunk, int64_t now_ms) {
  LiveRequest* request = find_open(chunk.id);
  if (request == nullptr) return discard_late(chunk), false;
  // The answer to a repeated acknowledgement is no progress.
  if (!std::holds_alternative<wire::SentCount>(chunk.body)) request->last_seen_ms = now_ms;
  const bool expected = request->route[stage] == slot;
  const auto stream = request->answer.streams.find(stage);
  Status status = wire::validate(chunk, true);
  if (!status.ok()) {
    status = internal_error("{}", status.message());
  } else if (const auto* failure = std::get_if<wire::Failure>(&chunk.body)) {
    // A terminal that has sent everything reports it when it is asked for more; here all of it has come.
    if (expected && stream != request->answer.streams.end() && stream->second.has_ended()) {
      ++late_;
      return false;
    }
    // Of any stage and replica: the request cannot complete any more.
    status = without_name(*failure, spec_.stages[stage].name);
  } else if (const auto* inputs = std::get_if<wire::InputsComplete>(&chunk.body); inputs && expected) {
    request->complete_inputs[stage] |= graph_.known(inputs->sources);
    return false;
  } else if (expected && stream != request->answer.streams.end()) {
    status = handle(*request, stage, stream->second, chunk, now_ms);
  } else {
    ++ignored_;
    discard(chunk.id, wire::payload_of(chunk.body));
    return false;
  }
  if (status.ok()) return request->answer.queued_chunks > 0 || stream->second.has_ended();
  flush(chunk.id, now_ms);  // what came before it
  fail(*request, stage, status);
  return false;
}

Status Delivery::handle(LiveRequest& request, std::size_t stage, TerminalStream& stream, wire::Chunk& chunk,
                        int64_t now_ms) {
  if (const auto* sent = std::get_if<wire::SentCount>(&chunk.body)) return stream.check_sent(sent->count);
  const auto* result = std::get_if<wire::StageResult>(&chunk.body);
  ASSIGN_OR_RETURN(const bool is_new, stream.accept(chunk.seq, result != nullptr));
  if (!is_new) {
    ++repeated_;
    return ok_status();
  }
  QueuedChunk* queued = nullptr;
  // The result is the last chunk of its stream, so its terminal waits for no acknowledgement any more.
  if (result) {
    window_.close(request.id, request.route[stage]);
  } else if (deliver(request, stage, chunk, now_ms)) {
    return ok_status();
  } else {
    queued = &stream.push(chunk);
    ++request.answer.queued_chunks, ++queued_chunks_;
    request.answer.queued_bytes += queued->bytes, queued_bytes_ += queued->bytes;
    if (queued->is_complete) return ok_status();
  }
  const wire::Payload& payload = *wire::payload_of(chunk.body);
  if (payload.in_relay()) {
    PayloadFetches::Arrival wanted{.id = request.id, .stage = stage};
    if (queued) wanted.chunk = chunk.seq;
    fetches_.start(payload, wanted, request.deadline_ms - now_ms);
    return ok_status();
  }
  ASSIGN_OR_RETURN(Value value, restore_inline(payload));
  if (queued) {
    stream.set_value(chunk.seq, std::move(value), false);
  } else {
    stream.set_result(std::move(value));
  }
  return ok_status();
}

// The fast path for per-token deltas: text for a request of which nothing waits. False: it has to wait; it is
// untouched.
bool Delivery::deliver(LiveRequest& request, std::size_t stage, wire::Chunk& chunk, int64_t now_ms) {
  auto* text = std::get_if<wire::TextDelta>(&chunk.body);
  if (text == nullptr || request.answer.queued_chunks > 0) return false;
  const std::size_t bytes = bytes_of(*text);
  RequestEvent event = chunk_event(request, stage, chunk.seq);
  auto& moved = event.body.emplace<wire::TextDelta>(std::move(*text));
  if (request.sink(event) == SinkAnswer::kFull) {
    *text = std::move(moved);  // a sink that is full leaves the event as it was
    return false;
  }
  window_.on_taken(request.id, request.route[stage], 1, bytes, now_ms);
  return true;
}

// ---- through relays

// Of a request that is over, or was never here.
void Delivery::discard_late(const wire::Chunk& chunk) {
  ++late_;
  const LiveRequest* request = requests_.find(chunk.id);
  // The stages of an aborted request release by themselves what they offer. The coordinator aborts a failed one next.
  const bool aborts = request != nullptr ? request->answer.over == RequestState::kFailed : aborts_.is_open(chunk.id);
  if (!aborts) discard(chunk.id, wire::payload_of(chunk.body));
}

// The payload is not wanted, but its sender keeps the bytes until they are taken.
void Delivery::discard(ReqId id, const wire::Payload* payload) {
  if (payload && payload->in_relay()) fetches_.start(*payload, {.id = id, .wanted = false}, kFetchTimeoutMs);
}

void Delivery::take_arrivals(int64_t now_ms) {
  for (auto arrivals = fetches_.take(); !arrivals.empty(); arrivals = fetches_.take()) {
    for (PayloadFetches::Arrival& arrival : arrivals) on_fetched(arrival, now_ms);
  }
}

void Delivery::on_fetched(PayloadFetches::Arrival& arrival, int64_t now_ms) {
  LiveRequest* request = arrival.wanted ? find_open(arrival.id) : nullptr;
  if (request == nullptr) return;
  if (!arrival.value.ok()) {
    return fail(*request, arrival.stage, of_fetch(arrival.value.status(), arrival.chunk));
  }
  TerminalStream& stream = request->answer.streams.at(arrival.stage);
  if (arrival.chunk) {
    stream.set_value(*arrival.chunk, std::move(arrival.value).value(), true);
  } else {
    stream.set_result(std::move(arrival.value).value());
  }
  flush(arrival.id, now_ms);
}

// ---- to the sink

// Gives the sink what has come; the request is over when that is all, or when too much waits.
void Delivery::flush(ReqId id, int64_t now_ms) {
  LiveRequest* request = find_open(id);
  if (request == nullptr) return;
  AnswerStreams& answer = request->answer;
  bool full = false;
  for (auto& [stage, stream] : answer.streams) {
    full = full || !flush_stream(*request, stage, stream, now_ms);
    // What waits for the client must not hold the memory of a relay: its credits are other requests' too.
    if (full) stream.copy_borrowed();
    if (stream.is_settled()) answer.open &= ~stage_bit(stage);
  }
  if (full) {
    blocked_.insert(id);
  } else {
    blocked_.erase(id);
  }
  if (Status status = check_limits(answer); !status.ok()) {
    return end(*request, {.state = RequestState::kFailed, .status = status});
  }
  if (answer.open == 0 && answer.queued_chunks == 0) complete(*request);
}

RequestEvent Delivery::chunk_event(const LiveRequest& request, std::size_t stage, uint64_t seq) const {
  return {.id = request.id, .stage = spec_.stages[stage].name, .chunk_id = seq};
}

// False: the sink takes no more.
bool Delivery::flush_stream(LiveRequest& request, std::size_t stage, TerminalStream& stream, int64_t now_ms) {
  uint64_t chunks = 0;
  std::size_t bytes = 0;
  bool full = false;
  while (QueuedChunk* chunk = stream.next()) {
    RequestEvent event = chunk_event(request, stage, chunk->seq);
    event.body = std::move(chunk->body);
    full = request.sink(event) == SinkAnswer::kFull;
    if (full) {
      chunk->body = std::move(event.body);
      break;
    }
    ++chunks, bytes += chunk->bytes;
    stream.pop();
  }
  CHECK(chunks <= request.answer.queued_chunks && bytes <= request.answer.queued_bytes);
  request.answer.queued_chunks -= chunks, queued_chunks_ -= chunks;
  request.answer.queued_bytes -= bytes, queued_bytes_ -= bytes;
  if (chunks > 0 && !stream.has_ended()) window_.on_taken(request.id, request.route[stage], chunks, bytes, now_ms);
  return !full;
}

Status Delivery::check_limits(const AnswerStreams& answer) const {
  constexpr auto kMessage = "the client takes its answer too slowly: {} {} wait for it, the limit is {}";
  if (answer.queued_chunks > limits_.max_chunks) {
    return error(StatusCode::kResourceExhausted, kMessage, answer.queued_chunks, "chunks", limits_.max_chunks);
  }
  if (answer.queued_bytes > limits_.max_bytes) {
    return error(StatusCode::kResourceExhausted, kMessage, answer.queued_bytes, "bytes", limits_.max_bytes);
  }
  return ok_status();
}

// Once: the first end is the request's.
void Delivery::end(LiveRequest& request, RequestEvent::End how) {
  if (request.answer.over) return;
  request.answer.over = how.state;
  ended_.push_back({request.id, std::move(how)});
}

void Delivery::complete(LiveRequest& request) {
  RequestEvent::End how{.state = RequestState::kCompleted};
  auto& streams = request.answer.streams;
  if (streams.size() == 1) {
    how.result = streams.begin()->second.take_result();
  } else {
    ValueMap merged;
    for (auto& [stage, stream] : streams) merged.emplace_back(spec_.stages[stage].name, stream.take_result());
    how.result = std::move(merged);
  }
  end(request, std::move(how));
}

void Delivery::fail(LiveRequest& request, std::size_t stage, const Status& status) {
  // A fault of the request is reported without the stage that found it: a client cannot act on that name.
  const bool of_client = status.code() == StatusCode::kInvalidArgument;
  const Status why = of_client ? status : status.with_prefix(fmt::format("stage '{}'", spec_.stages[stage].name));
  end(request, {.state = RequestState::kFailed, .status = why});
}

void Delivery::on_client_ready(ReqId id, int64_t now_ms) {
  if (!blocked_.contains(id)) return;
  flush(id, now_ms);
  window_.send();
}

void Delivery::tick(int64_t now_ms) {
  const std::vector<ReqId> blocked(blocked_.begin(), blocked_.end());
  for (const ReqId id : blocked) flush(id, now_ms);
  window_.tick(now_ms);
}

void Delivery::erase(const LiveRequest& request) {
  blocked_.erase(request.id);
  window_.erase(request.id);
  CHECK(request.answer.queued_chunks <= queued_chunks_ && request.answer.queued_bytes <= queued_bytes_);
  queued_chunks_ -= request.answer.queued_chunks;
  queued_bytes_ -= request.answer.queued_bytes;
}

void Delivery::add_to(CoordinatorBooks& books) const {
  books.fetches = fetches_.open();
  books.queued_chunks = queued_chunks_;
  books.queued_bytes = queued_bytes_;
  books.late += late_;
  books.repeated = repeated_;
  books.ignored = ignored_;
}

}  // namespace millrace
