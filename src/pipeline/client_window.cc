#include "pipeline/client_window.h"

#include <algorithm>

#include "wire/limits.h"

namespace millrace {

void ClientWindow::open(ReqId id, std::size_t slot, int64_t now_ms) {
  Stream& stream = stream_of(id, slot);
  stream.repeat_after_ms = kAckRepeatMs;
  stream.repeat_at_ms = now_ms + kAckRepeatMs;
}

void ClientWindow::on_taken(ReqId id, std::size_t slot, uint64_t chunks, std::size_t bytes, int64_t now_ms) {
  Stream& stream = stream_of(id, slot);
  stream.taken += chunks;
  stream.unacked_bytes += bytes;
  const bool half_used =
      stream.taken - stream.acked >= wire::kAckEveryChunks || stream.unacked_bytes >= wire::kAckEveryClientBytes;
  // Long before the window is full, so that a terminal need not stop for want of an acknowledgement.
  if (half_used) acknowledge(id, stream, now_ms);
}

ClientWindow::Stream& ClientWindow::stream_of(ReqId id, std::size_t slot) {
  std::vector<Stream>& streams = streams_[id];
  const auto found = std::find_if(streams.begin(), streams.end(), [slot](auto& stream) { return stream.slot == slot; });
  return found != streams.end() ? *found : streams.emplace_back(Stream{.slot = slot});
}

void ClientWindow::close(ReqId id, std::size_t slot) {
  const auto found = streams_.find(id);
  if (found != streams_.end()) std::erase_if(found->second, [slot](auto& stream) { return stream.slot == slot; });
}

void ClientWindow::acknowledge(ReqId id, Stream& stream, int64_t now_ms) {
  // The total and not the difference: a count that is lost is made good by the next, and one that comes twice changes
  // nothing.
  // Nothing was taken since: it is a repetition, and the pause doubles. A client that reads again begins anew.
  const bool repeated = stream.acked == stream.taken;
  unsent_[stream.slot][id] = {.id = id, .count = stream.taken, .repeated = repeated};
  stream.repeat_after_ms = repeated ? stream.repeat_after_ms * 2 : kAckRepeatMs;
  stream.repeat_at_ms = now_ms + stream.repeat_after_ms;
  stream.acked = stream.taken;
  stream.unacked_bytes = 0;
}

void ClientWindow::erase(ReqId id) {
  streams_.erase(id);
  for (auto& [slot, counts] : unsent_) counts.erase(id);
}

void ClientWindow::tick(int64_t now_ms) {
  if (now_ms < next_round_ms_) return;
  next_round_ms_ = now_ms + kClientAckMs;
  for (auto& [id, streams] : streams_) {
    for (Stream& stream : streams) {
      if (stream.taken > stream.acked || now_ms >= stream.repeat_at_ms) acknowledge(id, stream, now_ms);
    }
  }
}

void ClientWindow::send() {
  for (auto entry = unsent_.begin(); entry != unsent_.end();) {
    auto& [slot, counts] = *entry;
    std::vector<wire::Ack> acks;
    auto end = counts.begin();
    for (; end != counts.end() && acks.size() < wire::kMaxBatchEntries; ++end) {
      acks.push_back(end->second);
    }
    // What could not be sent stays, and a newer count replaces it.
    const bool sent = acks.empty() || send_(slot, std::move(acks)).ok();
    if (sent) counts.erase(counts.begin(), end);
    // With more requests than one message holds the same slot comes again.
    if (counts.empty()) {
      entry = unsent_.erase(entry);
    } else if (!sent) {
      ++entry;
    }
  }
}

}  // namespace millrace
