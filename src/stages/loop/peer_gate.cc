#include "stages/loop/peer_gate.h"

#include <utility>

namespace millrace::loop {

PeerGate::Sender PeerGate::check_coordinator(const wire::Origin& from) {
  if (!context_.is_member) return Sender::kUnknownYet;
  if (from.session != context_.session) {
    ++context_.counters.stale;
    return Sender::kIgnored;
  }
  lease_.coordinator_seen();
  return Sender::kAccepted;
}

PeerGate::Sender PeerGate::check_peer(const wire::Origin& from) {
  if (!context_.is_member) return Sender::kUnknownYet;
  const Standing standing = context_.book.standing(from.stage, from.replica, from.incarnation);
  if (from.session != context_.session || standing == Standing::kGone) {
    ++context_.counters.stale;
    return Sender::kIgnored;
  }
  return standing == Standing::kMember ? Sender::kAccepted : Sender::kUnknownYet;
}

void PeerGate::park(wire::Message message, std::size_t size_bytes) {
  while (!parked_.empty() && (parked_.size() >= kMaxParked || parked_bytes_ + size_bytes > kMaxParkedBytes)) {
    drop_oldest();
  }
  parked_bytes_ += size_bytes;
  parked_.push_back({.message = std::move(message), .until_ms = context_.now_ms + kParkMs, .size_bytes = size_bytes});
}

void PeerGate::unpark(const std::function<void(wire::Message)>& dispatch) {
  std::deque<Parked> parked = std::exchange(parked_, {});
  parked_bytes_ = 0;
  for (Parked& old : parked) {
    const std::size_t before = parked_.size();
    dispatch(std::move(old.message));
    if (parked_.size() > before) parked_.back().until_ms = old.until_ms;
  }
}

void PeerGate::expire() {
  while (due_ms() <= context_.now_ms) drop_oldest();
}

void PeerGate::drop_oldest() {
  parked_bytes_ -= parked_.front().size_bytes;
  parked_.pop_front();
  ++context_.counters.stale;
}

void PeerGate::clear() {
  parked_.clear();
  parked_bytes_ = 0;
}

std::size_t parked_size(const wire::ChunkBatch& batch) {
  std::size_t bytes = 0;
  for (const wire::Chunk& chunk : batch.chunks) {
    const wire::Payload* payload = wire::payload_of(chunk.body);
    bytes += sizeof(wire::Chunk) + (payload ? payload->tree.bytes.size() : 0);
  }
  return bytes;
}

}  // namespace millrace::loop
