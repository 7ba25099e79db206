#include "stages/loop/input_acks.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "wire/limits.h"

namespace millrace::loop {

void InputAcks::acknowledge_if_due(ReqId id, const std::string& from, InEdge& edge) {
  const uint64_t taken = edge.taken();
  if (taken == edge.acked) return;
  const bool only_chunks = taken == edge.delivered;
  if (only_chunks && taken - edge.acked < wire::kAckEveryChunks) {
    next_ms_ = std::min(next_ms_, context_.now_ms + kAckIdleMs);
    return;
  }
  acknowledge(id, from, edge);
}

void InputAcks::acknowledge(ReqId id, const std::string& from, InEdge& edge, bool repeated) {
  const auto [replica, incarnation] = edge.source;
  if (context_.book.standing(from, replica, incarnation) != Standing::kMember) return;
  const uint64_t count = edge.taken();
  if (outgoing_.acknowledge({from, replica, incarnation}, {.id = id, .count = count, .repeated = repeated}).ok()) {
    edge.acked = count;
    schedule_sweep();
  } else {
    next_ms_ = std::min(next_ms_, context_.now_ms + kAckIdleMs);
  }
}

void InputAcks::acknowledge_all(LoopRequest& request) {
  for (auto& [from, edge] : request.in.edges) {
    if (edge.acked < edge.taken()) acknowledge(request.id, from, edge);
  }
}

void InputAcks::acknowledge_ended(ReqId id, const wire::Origin& from, uint64_t count) {
  if (context_.book.standing(from.stage, from.replica, from.incarnation) != Standing::kMember) return;
  // One that is refused is made good by that of the next late chunk.
  static_cast<void>(outgoing_.acknowledge({from.stage, from.replica, from.incarnation}, {.id = id, .count = count}));
}

// Only of a stream that goes on: what comes behind its end has no window to wait for.
void InputAcks::repeat_if_silent(ReqId id, const std::string& from, InEdge& edge) {
  if (edge.is_complete()) return;
  sweep_ms_ = context_.now_ms + kAckRepeatMs;
  if (std::exchange(edge.swept, edge.next) != edge.next) {
    edge.silent_sweeps = 0;
  } else if (std::has_single_bit(++edge.silent_sweeps)) {
    acknowledge(id, from, edge, true);
  }
}

// Nothing where the receiver has all, or where the end is reported in another way: of a request that failed or that is
// being ended.
std::optional<wire::ChunkBody> InputAcks::answer_to(const wire::Origin& receiver, const wire::Ack& ack) const {
  if (const LoopRequest* request = requests_.live(ack.id)) {
    const auto edge = request->out.edges.find(receiver.stage);
    // What is in a batch that is still open may be overtaken.
    if (edge == request->out.edges.end() || edge->second.flushed <= ack.count) return std::nullopt;
    return wire::SentCount{edge->second.flushed};
  }
  const Tombstone* ended = requests_.tombstones().find(ack.id);
  if (ended == nullptr || ended->how != Ended::kFinished) return std::nullopt;
  const Status why = error(StatusCode::kUnavailable, "'{}' has sent all of its chunks; wanted chunk {}: one is lost",
                           context_.stage(), ack.count);
  return wire::Failure{why.code(), why.message()};
}

// The answer leaves behind everything that was sent, over the same connection. So the receiver has lost what it counts,
// or the end of which it speaks, or it has that and ignores the answer.
void InputAcks::answer_repeated(const wire::Origin& receiver, const wire::Ack& ack) {
  std::optional<wire::ChunkBody> body = answer_to(receiver, ack);
  if (!body) return;
  wire::Chunk chunk{.id = ack.id, .body = std::move(*body)};
  if (receiver.stage.empty()) return notices_.add(std::move(chunk));
  if (context_.book.standing(receiver.stage, receiver.replica, receiver.incarnation) != Standing::kMember) return;
  // Where it is refused, the next repetition asks again.
  static_cast<void>(outgoing_.append({receiver.stage, receiver.replica, receiver.incarnation}, chunk, 0));
}

Status InputAcks::check_sent(const LoopRequest& request, const wire::Origin& from, uint64_t count) {
  const auto edge = request.in.edges.find(from.stage);
  const uint64_t next = edge == request.in.edges.end() ? 0 : edge->second.next;
  if (count <= next) return ok_status();
  return error(StatusCode::kUnavailable, "'{}' has sent {} chunks; wanted chunk {}: one is lost", from.stage, count,
               next);
}

void InputAcks::tick() {
  if (context_.now_ms >= next_ms_) {
    next_ms_ = kNoWake;
    for (const auto& [id, request] : requests_.all()) {
      if (request->is_live()) acknowledge_all(*request);
    }
  }
  if (context_.now_ms < sweep_ms_) return;
  sweep_ms_ = kNoWake;
  for (const auto& [id, request] : requests_.all()) {
    if (!request->is_live()) continue;
    for (auto& [from, edge] : request->in.edges) repeat_if_silent(id, from, edge);
  }
}

}  // namespace millrace::loop
