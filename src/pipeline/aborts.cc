#include "pipeline/aborts.h"

#include <algorithm>

namespace millrace {

Aborts::Aborts(std::size_t max_open, Send send) : max_open_(max_open), send_(std::move(send)) {}

Status Aborts::check_capacity() const {
  if (aborts_.size() < max_open_) return ok_status();
  return error(StatusCode::kResourceExhausted, "{} aborts are open, the limit; try again later", aborts_.size());
}

void Aborts::open(ReqId id, const Placement::Route& route, std::vector<std::size_t> asked, int64_t now_ms) {
  if (asked.empty()) return;
  CHECK(!aborts_.contains(id));  // ids are not used twice
  Open& open = aborts_[id] = {.route = route, .awaiting = std::move(asked)};
  send(id, open, now_ms);
}

void Aborts::send(ReqId id, Open& open, int64_t now_ms) {
  open.next_ms = now_ms + kAbortRetryMs;
  ++open.tries;
  for (const std::size_t slot : open.awaiting) send_(slot, id);
}

void Aborts::on_ack(ReqId id, std::size_t slot) {
  const auto found = aborts_.find(id);
  if (found == aborts_.end()) return;
  std::erase(found->second.awaiting, slot);
  if (found->second.awaiting.empty()) aborts_.erase(found);
}

// Only where the route names the slot: others never had a part of the request. It is asked with the next retry.
void Aborts::on_joined(std::size_t slot) {
  for (auto& [id, open] : aborts_) {
    const bool awaited = std::find(open.awaiting.begin(), open.awaiting.end(), slot) != open.awaiting.end();
    const bool routed = std::find(open.route.begin(), open.route.end(), slot) != open.route.end();
    if (routed && !awaited) open.awaiting.push_back(slot);
  }
}

void Aborts::on_lost(std::size_t slot) {
  for (auto entry = aborts_.begin(); entry != aborts_.end();) {
    // A process that is gone has no part of it any more: that counts as its acknowledgement.
    std::erase(entry->second.awaiting, slot);
    entry = entry->second.awaiting.empty() ? aborts_.erase(entry) : std::next(entry);
  }
}

std::vector<Aborts::GivenUp> Aborts::tick(int64_t now_ms) {
  std::vector<GivenUp> given_up;
  for (auto entry = aborts_.begin(); entry != aborts_.end();) {
    auto& [id, open] = *entry;
    const bool due = now_ms >= open.next_ms;
    CHECK(!open.awaiting.empty());  // on_ack() and on_lost() erase an abort with its last replica
    if (due && open.tries >= kMaxAbortTries) {
      given_up.push_back({id, open.awaiting.front()});
      entry = aborts_.erase(entry);
      continue;
    }
    if (due) send(id, open, now_ms);
    ++entry;
  }
  given_up_ += given_up.size();
  return given_up;
}

std::size_t Aborts::awaited_acks() const {
  std::size_t count = 0;
  for (const auto& [id, open] : aborts_) count += open.awaiting.size();
  return count;
}

}  // namespace millrace
