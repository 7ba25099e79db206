#include "relay/tcp/outgoing_frame.h"

#include <algorithm>
#include <array>
#include <utility>

namespace millrace::tcp {

void OutgoingFrame::start(Outgoing frame) {
  CHECK(!open_ && frame.put);
  header_ = frame.header;
  head_ = encode(header_);
  put_ = std::move(frame.put);
  sent_ = 0;
  hashed_ = 0;
  open_ = true;
  if (!sums()) return;
  hasher_.reset();
  // Small frames are hashed first, so that header, bytes and trailer leave in one call.
  if (header_.length <= kHashFirstBytes) hash_up_to(header_.length);
}

std::size_t OutgoingFrame::payload_sent() const {
  return sent_ < kHeaderBytes ? 0 : std::min<std::size_t>(sent_ - kHeaderBytes, header_.length);
}

std::size_t OutgoingFrame::locate(std::size_t from, std::size_t size, std::span<iovec> out) const {
  if (size == 0) return 0;
  if (put_) return put_->map.fill(header_.offset + from, size, out);
  // copy_ has the payload's end: what was sent before detach() is not in it.
  out[0] = {const_cast<std::byte*>(copy_.data()) + (copy_.size() - (header_.length - from)), size};
  return 1;
}

void OutgoingFrame::hash_up_to(std::size_t end) {
  std::array<iovec, kMaxRangesPerCall> some{};
  while (hashed_ < end) {
    const std::size_t count = locate(hashed_, end - hashed_, some);
    for (std::size_t i = 0; i < count; ++i) {
      hasher_.add({static_cast<const std::byte*>(some[i].iov_base), some[i].iov_len});
      hashed_ += some[i].iov_len;
    }
  }
  if (hashed_ == header_.length) store_u64(trailer_.data(), hasher_.digest());
}

std::size_t OutgoingFrame::fill(std::span<iovec> out) const {
  CHECK(open_ && out.size() >= kMaxRangesPerCall + 2);  // the header, the bytes, the trailer
  std::size_t count = 0;
  if (sent_ < kHeaderBytes) out[count++] = {const_cast<std::byte*>(head_.data()) + sent_, kHeaderBytes - sent_};
  const std::size_t done = payload_sent();
  const bool hashed = hashed_ == header_.length;
  std::size_t size = header_.length - done;
  // No more than stays in the cache until advance() hashes it.
  if (sums() && !hashed) size = std::min(size, kHashedBytes);
  const std::size_t filled = locate(done, size, out.subspan(count, kMaxRangesPerCall));
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < filled; ++i) bytes += out[count + i].iov_len;
  count += filled;
  // The trailer is known when all is hashed, and is sent behind the last byte.
  if (!sums() || !hashed || done + bytes < header_.length) return count;
  const std::size_t trailer_sent = sent_ > kHeaderBytes + header_.length ? sent_ - kHeaderBytes - header_.length : 0;
  out[count++] = {const_cast<std::byte*>(trailer_.data()) + trailer_sent, kTrailerBytes - trailer_sent};
  return count;
}

void OutgoingFrame::advance(std::size_t bytes) {
  CHECK(open_ && bytes <= left());
  sent_ += bytes;
  if (sums()) hash_up_to(std::max(hashed_, payload_sent()));
  if (left() == 0) finish();
}

// The frame ends here, and with it the hold: the trailer's eight bytes do not keep the put.
std::array<std::byte, kTrailerBytes> OutgoingFrame::take_trailer() {
  CHECK(trailer_ready() && hashed_ == header_.length);
  finish();
  return trailer_;
}

void OutgoingFrame::detach() {
  if (!put_) return;
  // What was sent has been hashed already, so the rest is all that is needed.
  const std::size_t done = payload_sent();
  std::vector<std::byte> copy;
  copy.reserve(header_.length - done);
  std::array<iovec, kMaxRangesPerCall> some{};
  while (copy.size() < header_.length - done) {
    const std::size_t at = done + copy.size();
    const std::size_t count = locate(at, header_.length - at, some);
    for (std::size_t i = 0; i < count; ++i) {
      const auto* data = static_cast<const std::byte*>(some[i].iov_base);
      copy.insert(copy.end(), data, data + some[i].iov_len);
    }
  }
  copy_ = std::move(copy);
  put_.release();
}

void OutgoingFrame::finish() {
  open_ = false;
  copy_ = {};
  put_.release();
}

}  // namespace millrace::tcp
