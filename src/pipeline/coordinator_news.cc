// What the terminals say: chunks and results, fetched where they came through a relay, in order to the sink.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <variant>

#include "base/log.h"
#include "payload/inline_parts.h"
#include "pipeline/coordinator.h"

namespace millrace {
namespace {

Status of_stage(const std::string& stage, const Status& status) {
  return status.with_prefix(fmt::format("stage '{}'", stage));
}

// The same value in memory of our own. As deep as restore() allows at most.
Value copied(const Value& value) {
  if (const auto* list = value.get<ValueList>()) {
    ValueList out;
    for (const Value& element : *list) out.push_back(copied(element));
    return out;
  }
  if (const auto* map = value.get<ValueMap>()) {
    ValueMap out;
    for (const auto& [key, element] : *map) out.emplace_back(key, copied(element));
    return out;
  }
  const auto* tensor = value.get<SharedTensor>();
  if (tensor == nullptr || tensor->bytes.empty() || tensor->bytes.device() != Device::kHost) return value;
  Buffer buffer(tensor->bytes.size_bytes());
  std::memcpy(buffer.data(), tensor->bytes.data(), buffer.size_bytes());
  return SharedTensor{tensor->dtype, tensor->shape, SharedBytes(std::move(buffer))};
}

// A client that does not read must not keep the credits of a stage's relay from everybody else.
void give_back(Feed& feed) {
  for (Piece& piece : feed.pieces) {
    if (!piece.lent || !piece.value) continue;
    piece.value = copied(*piece.value);
    piece.lent = false;
  }
}

// Of a value or text for a client.
std::size_t bytes_of(const wire::ChunkBody& body) {
  if (const auto* text = std::get_if<wire::TextDelta>(&body)) {
    return text->text.size() + sizeof(int32_t) * text->tokens.size();
  }
  const wire::Payload& payload = *wire::payload_of(body);
  return std::accumulate(payload.part_bytes.begin(), payload.part_bytes.end(), payload.tree.bytes.size());
}

// A stage may have put its name before the message already.
Status without_name(const wire::Failure& failure, const std::string& stage) {
  std::string_view why = failure.message;
  if (const std::string own = stage + ": "; why.starts_with(own)) why.remove_prefix(own.size());
  return Status(failure.code, std::string(why));
}

}  // namespace

void Coordinator::on_late_event(ReqId id, const wire::Payload* payload) {
  ++counts_.late;
  // Where an abort is under way, the stage gives up what it offers by itself.
  if (payload != nullptr && !aborts_.contains(id)) discard(id, *payload);
}

// Null: this replica is no terminal of the request.
Feed* Coordinator::feed_of(LiveRequest& request, std::size_t seat) {
  const std::size_t stage = stage_of_seat_[seat];
  const auto found = request.feeds.find(stage);
  return found == request.feeds.end() || seat_of(request.route, stage) != seat ? nullptr : &found->second;
}

// What a replica sends in one step. The sink of each request is called when all of the batch is in.
void Coordinator::on_batch(wire::ChunkBatch& batch, int64_t now_ms) {
  const auto replica = members_.admit(batch.from);
  if (!replica) return;
  std::vector<ReqId> changed;
  for (wire::Chunk& chunk : batch.chunks) {
    if (on_chunk(*replica, batch.from.stage, chunk, now_ms)) changed.push_back(chunk.id);
  }
  std::sort(changed.begin(), changed.end());
  changed.erase(std::unique(changed.begin(), changed.end()), changed.end());
  for (const ReqId id : changed) flush(id, now_ms);
}

// True: the request's sink may have something to take.
bool Coordinator::on_chunk(std::size_t replica, const std::string& stage, wire::Chunk& chunk, int64_t now_ms) {
  LiveRequest* request = find(chunk.id);
  const wire::Payload* payload = wire::payload_of(chunk.body);
  if (request == nullptr) return on_late_event(chunk.id, payload), false;
  Status status = wire::validate(chunk, true);
  if (!status.ok()) {
    status = internal_error("{}", status.message());
  } else if (const auto* failure = std::get_if<wire::Failure>(&chunk.body)) {
    status = without_name(*failure, stage);  // of any stage: nothing can become of the request any more
  } else if (const auto* complete = std::get_if<wire::InputsComplete>(&chunk.body)) {
    return on_inputs_complete(*request, replica, *complete), false;
  } else if (Feed* feed = feed_of(*request, replica)) {
    status = add(*request, stage_of_seat_[replica], *feed, chunk, now_ms);
  } else {
    ++counts_.ignored;
    if (payload) discard(chunk.id, *payload);
    return false;
  }
  if (status.ok()) return true;
  flush(chunk.id, now_ms);  // what came before it
  fail(chunk.id, of_stage(stage, status), now_ms);
  return false;
}

void Coordinator::on_inputs_complete(LiveRequest& request, std::size_t replica, const wire::InputsComplete& complete) {
  const std::size_t stage = stage_of_seat_[replica];
  if (seat_of(request.route, stage) == replica) {
    request.gathered[stage] |= graph_.known(complete.sources);
  } else {
    ++counts_.ignored;
  }
}

Status Coordinator::add(LiveRequest& request, std::size_t stage, Feed& feed, wire::Chunk& chunk, int64_t now_ms) {
  const auto* result = std::get_if<wire::StageResult>(&chunk.body);
  if (chunk.seq > feed.next_chunk) {
    return error(StatusCode::kUnavailable, "chunk {} of the answer came; wanted chunk {}", chunk.seq, feed.next_chunk);
  }
  if (chunk.seq < feed.next_chunk) {
    if (result && !feed.chunks) {
      return internal_error("the result is chunk {} of the answer; {} chunks came before it", chunk.seq,
                            feed.next_chunk);
    }
    ++counts_.repeated;
    return ok_status();
  }
  if (feed.chunks) return internal_error("chunk {} of the answer came after the result", chunk.seq);
  ++feed.next_chunk;
  if (!result) return add_stream_chunk(request, stage, feed, chunk, now_ms);
  feed.chunks = chunk.seq;
  if (result->payload.in_relay()) {
    fetch(request, stage, std::nullopt, result->payload, now_ms);
    return ok_status();
  }
  ASSIGN_OR_RETURN(feed.result, restore_inline(result->payload));
  return ok_status();
}

Status Coordinator::add_stream_chunk(LiveRequest& request, std::size_t stage, Feed& feed, wire::Chunk& chunk,
                                     int64_t now_ms) {
  auto& waiting = feed.pieces.emplace_back();
  waiting = {.modality = "text", .chunk_id = chunk.seq, .bytes = bytes_of(chunk.body)};
  ++request.queued_chunks, ++counts_.queued_chunks;
  request.queued_bytes += waiting.bytes, counts_.queued_bytes += waiting.bytes;
  if (auto* text = std::get_if<wire::TextDelta>(&chunk.body)) {
    waiting.text = std::move(*text);
    return ok_status();
  }
  auto& value = std::get<wire::StreamValue>(chunk.body);
  waiting.modality = std::move(value.modality);
  if (value.payload.in_relay()) {
    fetch(request, stage, chunk.seq, value.payload, now_ms);
    return ok_status();
  }
  ASSIGN_OR_RETURN(waiting.value, restore_inline(value.payload));
  return ok_status();
}

// ---- the data plane

void Coordinator::fetch(LiveRequest& request, std::size_t stage, std::optional<uint64_t> chunk,
                        const wire::Payload& payload, int64_t now_ms) {
  const int64_t timeout_ms = std::clamp<int64_t>(request.deadline_ms - now_ms, 1, kFetchTimeoutMs);
  ++counts_.fetches;
  payloads_.take(request.id, payload, static_cast<int>(timeout_ms),
                 [arrivals = arrivals_, id = request.id, stage, chunk](Result<Value> value) {
                   arrivals->add({.id = id, .stage = stage, .chunk = chunk, .value = std::move(value)});
                 });
}

// Nobody wants it, but its sender keeps the bytes until they are taken.
void Coordinator::discard(ReqId id, const wire::Payload& payload) {
  if (!payload.in_relay()) return;
  ++counts_.fetches;
  payloads_.take(id, payload, static_cast<int>(kFetchTimeoutMs),
                 [arrivals = arrivals_, id](Result<Value>) { arrivals->add({.id = id, .wanted = false}); });
}

void Coordinator::take_arrivals(int64_t now_ms) {
  for (auto arrivals = arrivals_->take(); !arrivals.empty(); arrivals = arrivals_->take()) {
    for (Arrival& arrival : arrivals) arrive(arrival, now_ms);
  }
}

void Coordinator::arrive(Arrival& arrival, int64_t now_ms) {
  --counts_.fetches;
  LiveRequest* request = arrival.wanted ? find(arrival.id) : nullptr;
  if (request == nullptr) return;
  Feed& feed = request->feeds.at(arrival.stage);
  const std::string what = arrival.chunk ? fmt::format("chunk {}", *arrival.chunk) : std::string("the result");
  if (!arrival.value.ok()) {
    const Status why = arrival.value.status().with_prefix(what + " could not be fetched");
    return fail(arrival.id, of_stage(spec_.stages[arrival.stage].name, why), now_ms);
  }
  if (!arrival.chunk) {
    feed.result = std::move(arrival.value).value();
  } else {
    for (Piece& piece : feed.pieces) {
      if (piece.chunk_id != *arrival.chunk) continue;
      piece.value = std::move(arrival.value).value();
      piece.lent = true;
    }
  }
  flush(arrival.id, now_ms);
}

// ---- to the sink

// Says what has come, in the order of each terminal; ends the request when all is said, or too much waits.
void Coordinator::flush(ReqId id, int64_t now_ms) {
  LiveRequest* request = find(id);
  if (request == nullptr) return;
  bool full = false;
  for (auto& [stage, feed] : request->feeds) {
    full = full || !flush_feed(*request, stage, feed);
    if (full) give_back(feed);
    if (feed.settled()) request->open &= ~stage_bit(stage);
  }
  if (full) {
    blocked_.insert(id);
  } else {
    blocked_.erase(id);
  }
  if (Status status = over_limit(*request); !status.ok()) return fail(id, status, now_ms);
  watch_acks(*request, now_ms);
  if (request->open == 0 && request->queued_chunks == 0) finish(*request, now_ms);
}

// False: the sink takes no more.
bool Coordinator::flush_feed(LiveRequest& request, std::size_t stage, Feed& feed) {
  while (!feed.pieces.empty() && feed.pieces.front().here()) {
    Piece& piece = feed.pieces.front();
    RequestEvent event{.kind = RequestEvent::Kind::kChunk, .id = request.id, .stage = spec_.stages[stage].name};
    event.modality = piece.modality;
    event.chunk_id = piece.chunk_id;
    if (piece.value) event.value = std::move(*piece.value);
    event.text = std::move(piece.text);
    if (request.sink(event) == SinkAnswer::kFull) {
      if (piece.value) piece.value = std::move(event.value);
      piece.text = std::move(event.text);
      return false;
    }
    --request.queued_chunks, --counts_.queued_chunks;
    request.queued_bytes -= piece.bytes, counts_.queued_bytes -= piece.bytes;
    ++feed.taken, feed.taken_bytes += piece.bytes;
    feed.pieces.pop_front();
  }
  return true;
}

Status Coordinator::over_limit(const LiveRequest& request) const {
  if (request.queued_chunks > options_.max_client_chunks) {
    return error(StatusCode::kResourceExhausted,
                 "the client takes its answer too slowly: {} chunks wait for it, the limit is {}",
                 request.queued_chunks, options_.max_client_chunks);
  }
  if (request.queued_bytes > options_.max_client_bytes) {
    return error(StatusCode::kResourceExhausted,
                 "the client takes its answer too slowly: {} bytes wait for it, the limit is {}", request.queued_bytes,
                 options_.max_client_bytes);
  }
  return ok_status();
}

void Coordinator::finish(LiveRequest& request, int64_t now_ms) {
  RequestEvent event{.state = RequestState::kCompleted};
  if (request.feeds.size() == 1) {
    event.value = std::move(*request.feeds.begin()->second.result);
  } else {
    ValueMap merged;
    for (auto& [stage, feed] : request.feeds) merged.emplace_back(spec_.stages[stage].name, std::move(*feed.result));
    event.value = std::move(merged);
  }
  end(request.id, std::move(event), true, now_ms);
}

void Coordinator::client_ready(ReqId id, int64_t now_ms) {
  if (!blocked_.contains(id)) return;
  flush(id, now_ms);
  send_acks();
}

}  // namespace millrace
