#include "stages/transfer/kv_sender.h"

#include <algorithm>
#include <utility>

#include "stages/transfer/limits.h"

namespace millrace::transfer {

KvSender::KvSender(TransferId id, Range range)
    : id_(std::move(id)), range_(range), next_page_(range.from), open_end_(range.from), open_page_(range.from) {
  CHECK(range.from >= 0 && range.from < range.end && range.layers >= 1);
}

std::optional<wire::KvPart> KvSender::next(const Stored& stored) {
  const std::size_t at = next_number_ - taken_;
  std::optional<Run> run;
  if (at < sent_.size()) {
    run = sent_[at];
  } else {
    if (sent_.size() >= static_cast<std::size_t>(kWindowParts)) return std::nullopt;
    run = next_run(stored);
    if (!run) return std::nullopt;
  }
  return wire::KvPart{.id = id_,
                      .number = next_number_,
                      .first_page = run->first,
                      .pages = run->count,
                      .last = run->first + run->count == range_.end && run->layers.end == range_.layers,
                      .first_layer = run->layers.begin,
                      .layers = run->layers.count()};
}

// The pages from `first` on, as many as are one part.
KvSender::Run KvSender::run_of(int32_t first, int32_t end, LayerSpan layers) const {
  const int64_t pages = std::max<int64_t>(1, kPartBytes / std::max<int64_t>(1, range_.layer_bytes * layers.count()));
  return {first, static_cast<int32_t>(std::min<int64_t>(pages, end - first)), layers};
}

std::optional<KvSender::Run> KvSender::next_run(const Stored& stored) {
  const auto worth = [&](LayerSpan band, int32_t end) {
    if (band.count() <= 0 || end <= next_page_) return false;
    return band.end == range_.layers || range_.layer_bytes * band.count() * (end - next_page_) >= range_.least_bytes;
  };
  if (!half_sent()) {
    const int32_t cached = std::min(stored.cached, range_.end), end = std::min(stored.stored, range_.end);
    if (next_page_ < cached) return run_of(next_page_, cached, {0, range_.layers});
    const LayerSpan band{0, std::min(stored.layers, range_.layers - 1)};
    if (!worth(band, end)) return std::nullopt;
    open_end_ = end;
    open_page_ = next_page_;
    band_ = band;
  } else if (open_page_ == open_end_) {
    LayerSpan band{band_.end, 0};
    if (stored.cached >= open_end_) {
      band.end = range_.layers;
    } else if (stored.stored >= open_end_) {
      band.end = std::min(stored.layers, range_.layers - 1);
    }
    if (!worth(band, open_end_)) return std::nullopt;
    open_page_ = next_page_;
    band_ = band;
  }
  return run_of(open_page_, open_end_, band_);
}

void KvSender::sent(const wire::KvPart& part) {
  CHECK(part.number == next_number_);
  if (next_number_++ - taken_ < sent_.size()) return;  // again
  const int32_t end = part.first_page + part.pages;
  sent_.push_back({part.first_page, part.pages, {part.first_layer, part.first_layer + part.layers}});
  open_page_ = end;
  if (!half_sent() || (end == open_end_ && band_.end == range_.layers)) next_page_ = open_end_ = end;
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
