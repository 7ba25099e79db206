#include "api/spoken_turns.h"

#include <fmt/format.h>

#include <functional>
#include <random>
#include <utility>

namespace millrace::api {

std::string SpokenTurns::make_id() {
  std::random_device system;  // std::mt19937 would let a client compute the next ids from those that it was given
  return fmt::format("audio_{:08x}{:08x}{:08x}{:08x}", system(), system(), system(), system());
}

void SpokenTurns::drop_oldest() {
  const auto found = turns_.find(oldest_first_.front());
  bytes_ -= found->second.transcript.size();
  turns_.erase(found);
  oldest_first_.pop_front();
}

int64_t SpokenTurns::add(const std::string& id, std::string transcript, int64_t now_s) {
  std::lock_guard lock(mutex_);
  const int64_t expires_at = now_s + kSpokenTurnSeconds;
  const std::size_t size = transcript.size();
  if (!turns_.try_emplace(id, Turn{std::move(transcript), expires_at}).second) return expires_at;
  oldest_first_.push_back(id);
  bytes_ += size;
  while (!oldest_first_.empty() && (oldest_first_.size() > kMaxSpokenTurns || bytes_ > kMaxSpokenTurnsBytes ||
                                    turns_.find(oldest_first_.front())->second.expires_at <= now_s)) {
    drop_oldest();
  }
  return expires_at;
}

std::optional<std::string> SpokenTurns::find(std::string_view id, int64_t now_s) const {
  std::lock_guard lock(mutex_);
  const auto found = turns_.find(id);
  if (found == turns_.end() || found->second.expires_at <= now_s) return std::nullopt;
  return found->second.transcript;
}

std::size_t SpokenTurns::size() const {
  std::lock_guard lock(mutex_);
  return turns_.size();
}

}  // namespace millrace::api
