#include "stages/transfer/kv_sender.h"

#include <algorithm>
#include <utility>

#include "stages/transfer/limits.h"

namespace millrace::transfer {

KvSender::KvSender(TransferId id, int32_t from, int32_t end, int32_t part_pages)
    : id_(std::move(id)), end_(end), part_pages_(std::max(1, part_pages)), next_page_(from) {
  CHECK(from >= 0 && from < end);
}

std::optional<wire::KvPart> KvSender::next(int32_t cached) const {
  const std::size_t at = next_number_ - taken_;
  PageRun run;
  if (at < sent_.size()) {
    run = sent_[at];
  } else {
    if (sent_.size() >= static_cast<std::size_t>(kWindowParts)) return std::nullopt;
    run = {next_page_, std::min({part_pages_, cached - next_page_, end_ - next_page_})};
    if (run.count <= 0) return std::nullopt;
  }
  return wire::KvPart{.id = id_,
                      .number = next_number_,
                      .first_page = run.first,
                      .pages = run.count,
                      .last = run.first + run.count == end_};
}

void KvSender::sent(const wire::KvPart& part) {
  CHECK(part.number == next_number_);
  if (next_number_++ - taken_ < sent_.size()) return;  // again
  sent_.push_back({part.first_page, part.pages});
  next_page_ += part.pages;
}

Status KvSender::on_taken(const wire::KvTaken& taken) {
  if (taken.parts > next_number_) {
    // After a request to send again, what was sent before may be taken first.
    if (taken.parts > taken_ + sent_.size()) {
      return invalid_argument("{} parts are taken; {} were sent", taken.parts, next_number_);
    }
    next_number_ = taken.parts;
  }
  while (taken_ < taken.parts) {
    sent_.pop_front();
    ++taken_;
  }
  if (taken.again && next_number_ > taken_) {
    resent_ += next_number_ - taken_;
    next_number_ = taken_;
  }
  return ok_status();
}

}  // namespace millrace::transfer
