#include "app/text_link.h"

#include "stages/stage.h"

namespace millrace {

TextLink::TextLink(std::string stage, std::shared_ptr<Outbox> leader)
    : stage_(std::move(stage)), leader_(std::move(leader)), left_ms_(monotonic_ms()) {}

Status TextLink::send(wire::Message& message) {
  std::lock_guard lock(mutex_);
  said_ms_ = monotonic_ms();
  const auto* status = std::get_if<wire::StageStatus>(&message);
  if (status != nullptr && (stage_.empty() || status->stage == stage_)) beat(*status, said_ms_);
  const bool away = !to_ || to_->lost();
  if (away && status != nullptr) return ok_status();
  if (!to_) return Status(StatusCode::kUnavailable, "the next stage is not there");
  return to_->send(message);
}

// One that the next stage refuses comes here again and again.
void TextLink::beat(const wire::StageStatus& status, int64_t now_ms) {
  if (last_ && last_->stage == status.stage && last_->state == status.state && now_ms - beat_ms_ < kHeartbeatMs / 2)
    return;
  wire::Message copy = status;
  beat_ms_ = now_ms;
  if (leader_->send(copy).ok()) left_ms_ = now_ms;
  last_ = status;
}

void TextLink::repeat_beat() {
  std::lock_guard lock(mutex_);
  const int64_t now_ms = monotonic_ms();
  if (last_ && now_ms - beat_ms_ >= kRepeatBeatMs && now_ms - said_ms_ < kStageAliveMs) {
    beat(wire::StageStatus(*last_), now_ms);
  }
}

void TextLink::aim(std::shared_ptr<Outbox> to) {
  std::lock_guard lock(mutex_);
  to_ = std::move(to);
}

bool TextLink::lost() const {
  std::lock_guard lock(mutex_);
  return to_ && to_->lost();
}

int64_t TextLink::beat_left_ms() const {
  std::lock_guard lock(mutex_);
  return left_ms_;
}

}  // namespace millrace
