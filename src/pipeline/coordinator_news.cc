// What the terminals say: chunks and results, fetched where they came through a relay, in order to the sink.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/log.h"
#include "payload/packing.h"
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

std::size_t bytes_of(const wire::StreamOut& news) {
  if (news.text) return news.text->text.size() + sizeof(int32_t) * news.text->tokens.size();
  const wire::Payload& payload = *news.payload;
  return std::accumulate(payload.part_bytes.begin(), payload.part_bytes.end(), payload.tree.bytes.size());
}

}  // namespace

void Coordinator::late_news(ReqId id, const wire::Payload* payload) {
  ++counts_.late;
  // Where an abort is under way, the stage gives up what it offers by itself.
  if (payload != nullptr && !aborts_.contains(id)) discard(id, *payload);
}

// Null: this seat is no terminal of the request.
Feed* Coordinator::feed_of(LiveRequest& request, std::size_t seat) {
  const std::size_t stage = stage_of_seat_[seat];
  const auto found = request.feeds.find(stage);
  return found == request.feeds.end() || seat_of(request.route, stage) != seat ? nullptr : &found->second;
}

void Coordinator::hear(wire::StreamOut& news, int64_t now_ms) {
  const auto seat = members_.admit(news.from);
  if (!seat) return;
  LiveRequest* request = find(news.id);
  const wire::Payload* payload = news.payload ? &*news.payload : nullptr;
  if (request == nullptr) return late_news(news.id, payload);
  if (Status status = wire::validate(news); !status.ok()) {
    return fail(news.id, of_stage(news.from.stage, internal_error("{}", status.message())), now_ms);
  }
  Feed* feed = feed_of(*request, *seat);
  if (feed == nullptr) {
    ++counts_.ignored;
    return payload ? discard(news.id, *payload) : void();
  }
  if (news.chunk_id < feed->next_chunk) {
    ++counts_.repeated;
    return;
  }
  const Status added = add_chunk(*request, stage_of_seat_[*seat], *feed, news, now_ms);
  if (!added.ok()) return fail(news.id, of_stage(news.from.stage, added), now_ms);
  flush(news.id, now_ms);
}

Status Coordinator::add_chunk(LiveRequest& request, std::size_t stage, Feed& feed, wire::StreamOut& news,
                              int64_t now_ms) {
  if (news.chunk_id > feed.next_chunk) {
    return internal_error("chunk {} of the answer came; wanted chunk {}", news.chunk_id, feed.next_chunk);
  }
  if (feed.chunks && news.chunk_id >= *feed.chunks) {
    return internal_error("chunk {} of the answer came; the completion said that there are {}", news.chunk_id,
                          *feed.chunks);
  }
  ++feed.next_chunk;
  Piece& piece = feed.pieces.emplace_back();
  piece = {.modality = std::move(news.modality), .chunk_id = news.chunk_id, .bytes = bytes_of(news)};
  ++request.queued_chunks, ++counts_.queued_chunks;
  request.queued_bytes += piece.bytes, counts_.queued_bytes += piece.bytes;
  if (news.text) {
    piece.text = std::move(news.text);
    return ok_status();
  }
  if (!news.payload->part_bytes.empty()) {
    fetch(request, stage, news.chunk_id, *news.payload, now_ms);
    return ok_status();
  }
  ASSIGN_OR_RETURN(piece.value, restore(news.payload->tree.bytes, news.payload->tensors, {}));
  return ok_status();
}

void Coordinator::hear(wire::Complete& news, int64_t now_ms) {
  const auto seat = members_.admit(news.from);
  if (!seat) return;
  const wire::Payload* payload = news.result ? &*news.result : nullptr;
  LiveRequest* request = find(news.id);
  if (request == nullptr) return late_news(news.id, payload);
  if (Status status = wire::validate(news); !status.ok()) {
    return fail(news.id, of_stage(news.from.stage, internal_error("{}", status.message())), now_ms);
  }
  if (news.failure) {
    // Of any stage: nothing can become of the request any more.
    const StatusCode code = news.failure->code == StatusCode::kOk ? StatusCode::kInternal : news.failure->code;
    std::string_view why = news.failure->message;
    // A stage may have put its name before it already.
    if (const std::string own = news.from.stage + ": "; why.starts_with(own)) why.remove_prefix(own.size());
    return fail(news.id, of_stage(news.from.stage, Status(code, std::string(why))), now_ms);
  }
  Feed* feed = feed_of(*request, *seat);
  if (feed == nullptr) {
    ++counts_.ignored;
    return discard(news.id, *payload);
  }
  if (feed->chunks) {
    ++counts_.repeated;
    return;
  }
  const Status added = add_result(*request, stage_of_seat_[*seat], *feed, news, now_ms);
  if (!added.ok()) return fail(news.id, of_stage(news.from.stage, added), now_ms);
  flush(news.id, now_ms);
}

void Coordinator::hear(const wire::Gathered& news) {
  const auto seat = members_.admit(news.from);
  if (!seat) return;
  LiveRequest* request = find(news.id);
  if (request == nullptr) return late_news(news.id, nullptr);
  const std::size_t stage = stage_of_seat_[*seat];
  if (seat_of(request->route, stage) == *seat) {
    request->gathered[stage] |= graph_.known(news.sources);
  } else {
    ++counts_.ignored;
  }
}

// It may come before the last chunks of its stream, which are then waited for.
Status Coordinator::add_result(LiveRequest& request, std::size_t stage, Feed& feed, wire::Complete& news,
                               int64_t now_ms) {
  if (feed.next_chunk > news.chunks) {
    return internal_error("the completion says that there are {} chunks; {} came", news.chunks, feed.next_chunk);
  }
  feed.chunks = news.chunks;
  if (!news.result->part_bytes.empty()) {
    fetch(request, stage, std::nullopt, *news.result, now_ms);
    return ok_status();
  }
  ASSIGN_OR_RETURN(feed.result, restore(news.result->tree.bytes, news.result->tensors, {}));
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
  if (payload.part_bytes.empty()) return;
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
    PipelineNews news{.kind = PipelineNews::Kind::kChunk, .id = request.id, .stage = spec_.stages[stage].name};
    news.modality = piece.modality;
    news.chunk_id = piece.chunk_id;
    if (piece.value) news.value = std::move(*piece.value);
    news.text = std::move(piece.text);
    if (request.sink(news) == SinkAnswer::kFull) {
      if (piece.value) piece.value = std::move(news.value);
      piece.text = std::move(news.text);
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
  PipelineNews news{.state = RequestState::kCompleted};
  if (request.feeds.size() == 1) {
    news.value = std::move(*request.feeds.begin()->second.result);
  } else {
    ValueMap merged;
    for (auto& [stage, feed] : request.feeds) merged.emplace_back(spec_.stages[stage].name, std::move(*feed.result));
    news.value = std::move(merged);
  }
  end(request.id, std::move(news), true, now_ms);
}

void Coordinator::client_ready(ReqId id, int64_t now_ms) {
  if (blocked_.contains(id)) flush(id, now_ms);
}

}  // namespace millrace
