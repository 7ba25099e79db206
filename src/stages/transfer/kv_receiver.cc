#include "stages/transfer/kv_receiver.h"

#include <utility>

#include "stages/transfer/limits.h"

namespace millrace::transfer {

KvReceiver::KvReceiver(TransferId id, int32_t from, int32_t end, int64_t page_bytes, int64_t now_ms)
    : id_(std::move(id)),
      end_(end),
      page_bytes_(page_bytes),
      next_page_(from),
      progress_ms_(now_ms),
      renew_ms_(now_ms + kRenewMs),
      again_ms_(now_ms + kAgainMs) {
  CHECK(from >= 0 && from < end);
}

Result<KvReceiver::Part> KvReceiver::on_part(const wire::KvPart& part, int64_t now_ms) {
  if (part.number < next_) return Part::kRepeated;
  // Parts behind a gap are dropped: the sender sends them again too.
  if (part.number > next_) {
    if (ask_again()) return Part::kAskAgain;
    // The request for the missing part may be on its way; time decides.
    return Part::kRepeated;
  }
  if (part.checksum != wire::kv_checksum(part)) {
    if (ask_again()) return Part::kAskAgain;
    return error(StatusCode::kInternal, "part {} was damaged twice", part.number);
  }
  const int64_t end = int64_t{part.first_page} + part.pages;
  if (part.first_page != next_page_ || end > end_ || part.last != (end == end_)) {
    return invalid_argument("part {} has the pages [{}, {}); wanted [{}, ...) of {}", part.number, part.first_page, end,
                            next_page_, end_);
  }
  if (part.relay.empty() && static_cast<int64_t>(part.bytes.bytes.size()) != part.pages * page_bytes_) {
    return invalid_argument("part {} has {} bytes for {} pages; wanted {}", part.number, part.bytes.bytes.size(),
                            part.pages, part.pages * page_bytes_);
  }
  next_page_ += part.pages;
  ++next_;
  asked_ = again_ = false;
  progress_ms_ = now_ms;
  again_ms_ = now_ms + kAgainMs;
  return Part::kWrite;
}

Result<KvReceiver::Part> KvReceiver::on_lost(uint32_t number, int32_t first_page, const Status& status) {
  if (lost_ == number) return status.with_prefix(fmt::format("part {}, for the second time", number));
  lost_ = number;
  next_ = number;
  next_page_ = first_page;
  asked_ = false;
  ask_again();
  return Part::kAskAgain;
}

bool KvReceiver::ask_again() {
  if (asked_) return false;
  asked_ = again_ = true;
  ++asked_again_;
  return true;
}

KvReceiver::Due KvReceiver::due(int64_t now_ms) {
  if (now_ms - progress_ms_ >= kProgressTimeoutMs && next_page_ < end_) return Due::kGiveUp;
  if (now_ms < renew_ms_) return Due::kNothing;
  renew_ms_ = now_ms + kRenewMs;
  if (now_ms >= again_ms_ && next_page_ < end_) {
    again_ = true;
    again_ms_ = now_ms + kAgainMs;
  }
  return Due::kRenew;
}

wire::KvTaken KvReceiver::taken(std::string reply_to) {
  return {id_, written_, std::exchange(again_, false), std::move(reply_to)};
}

}  // namespace millrace::transfer
