#include "stages/transfer/kv_receiver.h"

#include <algorithm>
#include <utility>

#include "stages/transfer/limits.h"

namespace millrace::transfer {

KvReceiver::KvReceiver(TransferId id, int32_t from, int32_t end, int32_t layers, int64_t page_bytes, int64_t now_ms)
    : id_(std::move(id)),
      from_(from),
      end_(end),
      all_layers_(layers),
      layer_bytes_(page_bytes / layers),
      layers_(static_cast<std::size_t>(end - from)),
      next_page_(from),
      progress_ms_(now_ms),
      renew_ms_(now_ms + kRenewMs),
      again_ms_(now_ms + kAgainMs) {
  CHECK(from >= 0 && from < end && layers >= 1);
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
  RETURN_IF_ERROR(check(part));
  for (int32_t page = part.first_page; page < part.first_page + part.pages; ++page) {
    layers_[static_cast<std::size_t>(page - from_)] = part.first_layer + part.layers;
  }
  while (next_page_ < end_ && layers_[static_cast<std::size_t>(next_page_ - from_)] == all_layers_) ++next_page_;
  ++next_;
  asked_ = again_ = false;
  progress_ms_ = now_ms;
  again_ms_ = now_ms + kAgainMs;
  return Part::kWrite;
}

// Whether it follows what has come: pages without gaps, and of each page its layers in sequence.
Status KvReceiver::check(const wire::KvPart& part) const {
  const int64_t end = int64_t{part.first_page} + part.pages, end_layer = int64_t{part.first_layer} + part.layers;
  bool follows = part.first_page >= next_page_ && end <= end_ && end_layer <= all_layers_;
  for (int64_t page = part.first_page; follows && page < end; ++page) {
    follows = layers_[static_cast<std::size_t>(page - from_)] == part.first_layer;
  }
  const bool new_pages = follows && part.first_layer == 0 && part.first_page > next_page_;
  if (new_pages) follows = layers_[static_cast<std::size_t>(part.first_page - 1 - from_)] > 0;
  if (!follows || part.last != (end == end_ && end_layer == all_layers_)) {
    return invalid_argument(
        "part {} has the layers [{}, {}) of the pages [{}, {}); wanted what follows page {} of {} with {} layers",
        part.number, part.first_layer, end_layer, part.first_page, end, next_page_, end_, all_layers_);
  }
  if (part.relay.empty() && static_cast<int64_t>(part.bytes.bytes.size()) != bytes_of(part)) {
    return invalid_argument("part {} has {} bytes for {} pages; wanted {}", part.number, part.bytes.bytes.size(),
                            part.pages, bytes_of(part));
  }
  return ok_status();
}

Result<KvReceiver::Part> KvReceiver::on_lost(const std::vector<Run>& newest, const Status& status) {
  const uint32_t number = newest.front().number;
  if (lost_ == number) return status.with_prefix(fmt::format("part {}, for the second time", number));
  lost_ = number;
  next_ = number;
  // The last one first: its pages have the layers again that they had before it.
  for (auto run = newest.rbegin(); run != newest.rend(); ++run) {
    for (int32_t page = run->first_page; page < run->end(); ++page) {
      layers_[static_cast<std::size_t>(page - from_)] = run->layers.begin;
    }
    next_page_ = std::min(next_page_, run->first_page);
  }
  asked_ = false;
  ask_again();
  return Part::kAskAgain;
}

bool KvReceiver::ask_again() {
  if (asked_) return false;
  asked_ = again_ = true;
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
