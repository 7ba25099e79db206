#include "stages/loop/input_acks.h"

#include <algorithm>

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

void InputAcks::acknowledge(ReqId id, const std::string& from, InEdge& edge) {
  const uint64_t count = edge.taken();
  if (send(id, {from, edge.source.replica, edge.source.incarnation}, count)) {
    edge.acked = count;
  } else {
    next_ms_ = std::min(next_ms_, context_.now_ms + kAckIdleMs);
  }
}

// One to a sender that is gone needs no second try.
bool InputAcks::send(ReqId id, const Outgoing::Receiver& to, uint64_t count) {
  const wire::Peer* peer = context_.book.find(to.stage, to.replica);
  if (!peer || !peer->up || peer->incarnation != to.incarnation) return true;
  return outgoing_.acknowledge(to, {.id = id, .count = count}).ok();
}

void InputAcks::acknowledge_all(LoopRequest& request) {
  for (auto& [from, edge] : request.in) {
    if (edge.acked < edge.taken()) acknowledge(request.id, from, edge);
  }
}

void InputAcks::acknowledge_ended(ReqId id, const wire::Origin& from, uint64_t count) {
  static_cast<void>(
      send(id, {from.stage, from.replica, from.incarnation}, count));  // repeated with the next late chunk
}

void InputAcks::tick() {
  if (context_.now_ms < next_ms_) return;
  next_ms_ = kNoWake;
  for (const auto& [id, request] : requests_.all()) {
    if (request->is_live()) acknowledge_all(*request);
  }
}

}  // namespace millrace::loop
