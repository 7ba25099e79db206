#include "relay/tcp/outgoing.h"

#include <array>
#include <utility>

namespace millrace::tcp {

void OutgoingFrame::start(const Header& header, const PartMap* parts, RelayOp op, std::function<void()> unpin) {
  CHECK(!open_);
  header_ = header;
  head_ = encode(header);
  parts_ = parts;
  op_ = op;
  unpin_ = std::move(unpin);
  sent_ = 0;
  open_ = true;
}

std::size_t OutgoingFrame::fill(std::span<iovec> out) const {
  std::size_t count = 0;
  std::size_t done = 0;  // of the payload
  if (sent_ < kHeaderBytes) {
    out[count++] = {const_cast<std::byte*>(head_.data()) + sent_, kHeaderBytes - sent_};
  } else {
    done = sent_ - kHeaderBytes;
  }
  if (!copy_.empty()) {
    const std::size_t left = header_.length - done;
    out[count++] = {const_cast<std::byte*>(copy_.data()) + (copy_.size() - left), left};
    return count;
  }
  return count + parts_->fill(header_.offset + done, header_.length - done, out.subspan(count));
}

void OutgoingFrame::advance(std::size_t bytes) {
  CHECK(open_ && bytes <= left());
  sent_ += bytes;
  if (left() == 0) finish();
}

void OutgoingFrame::detach() {
  if (!attached()) return;
  const std::size_t done = sent_ < kHeaderBytes ? 0 : sent_ - kHeaderBytes;
  std::vector<std::byte> copy;
  copy.reserve(header_.length - done);
  uint64_t at = header_.offset + done;
  const uint64_t end = header_.offset + header_.length;
  std::array<iovec, kMaxPiecesPerCall> pieces{};
  while (at < end) {
    const std::size_t count = parts_->fill(at, end - at, pieces);
    for (std::size_t i = 0; i < count; ++i) {
      const auto* data = static_cast<const std::byte*>(pieces[i].iov_base);
      copy.insert(copy.end(), data, data + pieces[i].iov_len);
      at += pieces[i].iov_len;
    }
  }
  copy_ = std::move(copy);
  parts_ = nullptr;
  std::exchange(unpin_, nullptr)();
}

void OutgoingFrame::finish() {
  open_ = false;
  copy_ = {};
  parts_ = nullptr;
  if (unpin_ != nullptr) std::exchange(unpin_, nullptr)();
}

}  // namespace millrace::tcp
