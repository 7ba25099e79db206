// How much of an answer its client has taken, for the stages that stream it: they have at most a window of it on the
// way. A word that is lost is said again, ever more rarely; where it comes twice it does no harm.
#include "pipeline/coordinator.h"
#include "wire/limits.h"

namespace millrace {

// After the sink took something: a window that is half used is told at once, anything else with the next round.
void Coordinator::watch_acks(LiveRequest& request, int64_t now_ms) {
  for (auto& [stage, feed] : request.feeds) {
    if (feed.taken == 0 || feed.chunks) continue;  // one that has completed waits for nothing
    streaming_.insert(request.id);
    const bool much =
        feed.taken - feed.acked >= wire::kAckEveryChunks || feed.taken_bytes >= wire::kAckEveryClientBytes;
    if (much) acknowledge(request, stage, feed, now_ms);
  }
}

// Leaves with the end of the step.
void Coordinator::acknowledge(LiveRequest& request, std::size_t stage, Feed& feed, int64_t now_ms) {
  acks_[*seat_of(request.route, stage)][request.id] = feed.taken;
  feed.ack_gap_ms = feed.acked == feed.taken ? feed.ack_gap_ms * 2 : kAckRepeatMs;
  feed.ack_again_ms = now_ms + feed.ack_gap_ms;
  feed.acked = feed.taken;
  feed.taken_bytes = 0;
}

// One batch for each replica; what its outbox refuses is tried with the next step.
void Coordinator::send_acks() {
  for (auto entry = acks_.begin(); entry != acks_.end();) {
    auto& [replica, counts] = *entry;
    wire::AckBatch batch{.from = members_.self(), .to = spec_.stages[stage_of_seat_[replica]].name};
    auto end = counts.begin();
    for (; end != counts.end() && batch.acks.size() < wire::kMaxBatchEntries; ++end) {
      batch.acks.push_back({.id = end->first, .count = end->second});
    }
    wire::Message message = std::move(batch);
    const bool sent = counts.empty() || send(replica, message).ok();
    if (sent) counts.erase(counts.begin(), end);
    if (counts.empty()) {
      entry = acks_.erase(entry);
    } else if (!sent) {
      ++entry;
    }
  }
}

void Coordinator::acknowledge_due(int64_t now_ms) {
  if (now_ms < next_acks_ms_) return;
  next_acks_ms_ = now_ms + kClientAckMs;
  for (auto id = streaming_.begin(); id != streaming_.end();) {
    LiveRequest& request = *table_.at(*id);
    bool open = false;
    for (auto& [stage, feed] : request.feeds) {
      if (feed.taken == 0 || feed.chunks) continue;
      open = true;
      if (feed.taken > feed.acked || now_ms >= feed.ack_again_ms) acknowledge(request, stage, feed, now_ms);
    }
    id = open ? std::next(id) : streaming_.erase(id);
  }
}

}  // namespace millrace
