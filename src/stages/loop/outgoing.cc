#include "stages/loop/outgoing.h"

#include <algorithm>
#include <iterator>

#include "stages/loop/limits.h"
#include "wire/limits.h"

namespace millrace::loop {
namespace {

std::vector<ReqId> ids_of(const std::vector<wire::Chunk>& chunks) {
  std::vector<ReqId> ids;
  ids.reserve(chunks.size());
  for (const wire::Chunk& chunk : chunks) {
    if (wire::is_numbered(chunk.body)) ids.push_back(chunk.id);
  }
  return ids;
}

}  // namespace

Status Outgoing::held(const Receiver& receiver) const {
  const auto found = open_.find(receiver);
  return found == open_.end() ? ok_status() : found->second.refusal;
}

bool Outgoing::is_full_for(const Batches& batches, std::size_t size_bytes) {
  const std::size_t count = std::get<wire::ChunkBatch>(batches.chunks).chunks.size();
  return count >= wire::kMaxBatchEntries || (count > 0 && batches.size_bytes + size_bytes > kMaxBatchBytes);
}

Status Outgoing::append(const Receiver& receiver, wire::Chunk& chunk, std::size_t size_bytes) {
  Batches& batches = open_[receiver];
  if (is_full_for(batches, size_bytes) && batches.refusal.ok()) send_chunks(receiver, batches);
  RETURN_IF_ERROR(batches.refusal);
  chunks_of(batches).push_back(std::move(chunk));
  batches.size_bytes += size_bytes;
  ++chunks_;
  return ok_status();
}

// Acknowledgements have a batch of their own, so they are not held because chunks are.
Status Outgoing::acknowledge(const Receiver& receiver, const wire::Ack& ack) {
  Batches& batches = open_[receiver];
  if (acks_of(batches).size() >= wire::kMaxBatchEntries && batches.refusal.ok()) send(receiver, batches);
  if (acks_of(batches).size() >= wire::kMaxBatchEntries) {
    return error(StatusCode::kResourceExhausted, "{} acknowledgements wait for '{}', the limit",
                 acks_of(batches).size(), receiver.stage);
  }
  acks_of(batches).push_back(ack);
  return ok_status();
}

void Outgoing::flush() {
  for (auto& [receiver, batches] : open_) {
    if (batches.refusal.ok()) send(receiver, batches);
  }
}

void Outgoing::retry() {
  for (auto& [receiver, batches] : open_) {
    if (!batches.refusal.ok()) send(receiver, batches);
  }
}

void Outgoing::send(const Receiver& receiver, Batches& batches) {
  batches.refusal = ok_status();
  send_chunks(receiver, batches);
  if (acks_of(batches).empty()) return;
  std::get<wire::AckBatch>(batches.acks).to = receiver.stage;
  const Status status = context_.send(receiver, batches.acks);
  if (is_refused_for_now(status)) {
    if (batches.refusal.ok()) batches.refusal = status;
    return;
  }
  batches.acks = wire::AckBatch{};  // what can never be sent is made good by later counts
}

void Outgoing::send_chunks(const Receiver& receiver, Batches& batches) {
  if (chunks_of(batches).empty()) return;
  std::get<wire::ChunkBatch>(batches.chunks).to = receiver.stage;
  const std::size_t count = chunks_of(batches).size();
  std::vector<ReqId> ids = ids_of(chunks_of(batches));
  const Status status = context_.send(receiver, batches.chunks);
  // Failures alone are not worth waiting for a receiver that is gone: the coordinator's abort reaches it.
  const bool is_dropped = status.code() == StatusCode::kUnavailable && ids.empty();
  if (is_refused_for_now(status) && !is_dropped) {
    batches.refusal = status;
    if (status.code() == StatusCode::kUnavailable) results_.push_back({receiver, std::move(ids), status});
    return;
  }
  if (!status.ok() && !is_dropped && count > 1) return send_one_by_one(receiver, batches);
  chunks_ -= count;
  results_.push_back({receiver, std::move(ids), status});
  // A message that was sent has been moved from; one that was not still has its chunks.
  batches.chunks = wire::ChunkBatch{};
  chunks_of(batches).reserve(count);  // the next step sends about as many
  batches.size_bytes = 0;
}

// One of them can never be sent, and the outbox does not know which one.
void Outgoing::send_one_by_one(const Receiver& receiver, Batches& batches) {
  std::vector<wire::Chunk> chunks = std::exchange(chunks_of(batches), {});
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    wire::ChunkBatch one{.to = receiver.stage};
    one.chunks.push_back(std::move(chunks[i]));
    std::vector<ReqId> ids = ids_of(one.chunks);
    wire::Message message = std::move(one);
    const Status status = context_.send(receiver, message);
    if (is_refused_for_now(status)) {
      batches.refusal = status;
      chunks[i] = std::move(std::get<wire::ChunkBatch>(message).chunks[0]);
      chunks_of(batches).assign(std::make_move_iterator(chunks.begin() + static_cast<std::ptrdiff_t>(i)),
                                std::make_move_iterator(chunks.end()));
      return;
    }
    --chunks_;
    results_.push_back({receiver, std::move(ids), status});
  }
  batches.size_bytes = 0;
}

void Outgoing::drop(ReqId id) {
  for (auto& [receiver, batches] : open_) {
    chunks_ -= std::erase_if(
        chunks_of(batches), [id](const wire::Chunk& chunk) { return chunk.id == id && wire::is_numbered(chunk.body); });
    if (chunks_of(batches).empty()) batches.size_bytes = 0;
  }
}

void Outgoing::drop_if(const std::function<bool(const Receiver&)>& gone) {
  for (auto entry = open_.begin(); entry != open_.end();) {
    if (!gone(entry->first)) {
      ++entry;
      continue;
    }
    chunks_ -= chunks_of(entry->second).size();
    entry = open_.erase(entry);
  }
}

void Outgoing::clear() {
  open_.clear();
  results_.clear();
  chunks_ = 0;
}

bool Outgoing::any_open() const {
  return std::any_of(open_.begin(), open_.end(), [](const auto& entry) {
    const auto& [receiver, batches] = entry;
    const bool is_empty = std::get<wire::ChunkBatch>(batches.chunks).chunks.empty() &&
                          std::get<wire::AckBatch>(batches.acks).acks.empty();
    return batches.refusal.ok() && !is_empty;
  });
}

bool Outgoing::any_held() const {
  return std::any_of(open_.begin(), open_.end(), [](const auto& entry) { return !entry.second.refusal.ok(); });
}

}  // namespace millrace::loop
