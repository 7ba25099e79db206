#include "pipeline/client_window.h"

#include "wire/limits.h"

namespace millrace {

void ClientWindow::on_taken(ReqId id, std::size_t slot, uint64_t chunks, std::size_t bytes, int64_t now_ms) {
  const Key key{id, slot};
  Stream& stream = streams_[key];
  stream.taken += chunks;
  stream.unacked_bytes += bytes;
  const bool half_used =
      stream.taken - stream.acked >= wire::kAckEveryChunks || stream.unacked_bytes >= wire::kAckEveryClientBytes;
  if (half_used) acknowledge(key, stream, now_ms);
}

void ClientWindow::acknowledge(const Key& key, Stream& stream, int64_t now_ms) {
  unsent_[key.second][key.first] = stream.taken;
  stream.repeat_after_ms = stream.acked == stream.taken ? stream.repeat_after_ms * 2 : kAckRepeatMs;
  stream.repeat_at_ms = now_ms + stream.repeat_after_ms;
  stream.acked = stream.taken;
  stream.unacked_bytes = 0;
}

void ClientWindow::erase(ReqId id) {
  streams_.erase(streams_.lower_bound({id, 0}), streams_.lower_bound({ReqId{id.value + 1}, 0}));
  for (auto& [slot, counts] : unsent_) counts.erase(id);
}

void ClientWindow::tick(int64_t now_ms) {
  if (now_ms < next_round_ms_) return;
  next_round_ms_ = now_ms + kClientAckMs;
  for (auto& [key, stream] : streams_) {
    if (stream.taken > stream.acked || now_ms >= stream.repeat_at_ms) acknowledge(key, stream, now_ms);
  }
}

void ClientWindow::send() {
  for (auto entry = unsent_.begin(); entry != unsent_.end();) {
    auto& [slot, counts] = *entry;
    std::vector<wire::Ack> acks;
    auto end = counts.begin();
    for (; end != counts.end() && acks.size() < wire::kMaxBatchEntries; ++end) {
      acks.push_back({.id = end->first, .count = end->second});
    }
    const bool sent = acks.empty() || send_(slot, std::move(acks)).ok();
    if (sent) counts.erase(counts.begin(), end);
    if (counts.empty()) {
      entry = unsent_.erase(entry);
    } else if (!sent) {
      ++entry;
    }
  }
}

}  // namespace millrace
