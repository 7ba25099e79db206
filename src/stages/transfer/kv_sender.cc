#include "stages/transfer/kv_sender.h"

#include <algorithm>
#include <utility>

#include "stages/transfer/limits.h"

namespace millrace::transfer {

KvSender::KvSender(TransferId id, int32_t from, int32_t end, int32_t part_pages)
    : id_(std::move(id)), end_(end), part_pages_(std::max(1, part_pages)), next_page_(from) {
  CHECK(from >= 0 && from < end);
}

std::optional<PageRun> KvSender::next_run(int32_t cached) const {
  if (kept_.size() >= static_cast<std::size_t>(kWindowParts)) return std::nullopt;
  const int32_t count = std::min({part_pages_, cached - next_page_, end_ - next_page_});
  if (count <= 0) return std::nullopt;
  return PageRun{next_page_, count};
}

void KvSender::add(const PageRun& run, std::string bytes) {
  CHECK(run.first == next_page_ && run.count > 0);
  next_page_ += run.count;
  wire::KvPart& part = kept_.emplace_back();
  part.id = id_;
  part.number = taken_ + static_cast<uint32_t>(kept_.size()) - 1;
  part.first_page = run.first;
  part.pages = run.count;
  part.last = run.first + run.count == end_;
  part.bytes.bytes = std::move(bytes);
  part.checksum = wire::kv_checksum(part);
}

const wire::KvPart* KvSender::next_part() const {
  const std::size_t at = next_sent_ - taken_;
  return at < kept_.size() ? &kept_[at] : nullptr;
}

Status KvSender::on_taken(const wire::KvTaken& taken) {
  if (taken.parts > next_sent_) {
    // After a request to send again, what was sent before may be taken first.
    if (taken.parts > taken_ + kept_.size()) {
      return invalid_argument("{} parts are taken; {} were sent", taken.parts, next_sent_);
    }
    next_sent_ = taken.parts;
  }
  while (taken_ < taken.parts) {
    kept_.pop_front();
    ++taken_;
  }
  if (taken.again && next_sent_ > taken_) {
    resent_ += next_sent_ - taken_;
    next_sent_ = taken_;
  }
  return ok_status();
}

}  // namespace millrace::transfer
