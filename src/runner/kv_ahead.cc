#include "runner/kv_ahead.h"

#include <algorithm>

namespace millrace {
namespace {

constexpr int64_t kSmallestSystemPage = 4096;

// Writes what is there: the system must give memory for it, and the bits stay.
void touch_range(char* begin, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += kSmallestSystemPage) {
    volatile char* byte = begin + at;
    *byte = *byte;
  }
}

}  // namespace

KvAhead::KvAhead(std::span<const kernels::KvLayer> layers) {
  for (const kernels::KvLayer& layer : layers) {
    for (void* side : {layer.k, layer.v}) buffers_.push_back(static_cast<char*>(side));
    page_size_ = layer.page_size;
    page_bytes_ = layer.page_stride_bytes;
    size_ = layer.page_stride_bytes * layer.page_count;
  }
}

// The batch itself reaches the rows of the pages that it uses.
void KvAhead::saw(const Batch& batch) {
  for (const SequenceStep& sequence : batch.sequences) {
    if (sequence.pages.empty()) continue;
    used_bytes_ = std::max(used_bytes_, (int64_t{std::ranges::max(sequence.pages)} + 1) * page_bytes_);
  }
  used_ = (used_bytes_ + kKvTouchBytes - 1) / kKvTouchBytes;
  if (used_ <= touched_) return;
  touched_ = used_;
  buffer_ = 0;
}

int64_t KvAhead::rows_ahead() const {
  const int64_t most = kKvBytesAhead / static_cast<int64_t>(buffers_.size());
  return std::max<int64_t>(1, std::min(kKvTokensAhead * page_bytes_ / page_size_, most) / kKvTouchBytes);
}

bool KvAhead::touch_in_step() {
  if (used_ == 0 || touched_ > used_) return false;
  const int64_t in_row = used_bytes_ - (used_ - 1) * kKvTouchBytes;
  const int64_t wanted = in_row * static_cast<int64_t>(buffers_.size()) / kKvTouchBytes;
  return static_cast<int64_t>(buffer_) < wanted && touch(1);
}

bool KvAhead::touch(int64_t rows) {
  const int64_t begin = touched_ * kKvTouchBytes;
  if (touched_ >= used_ + rows || begin >= size_) return false;
  touch_range(buffers_[buffer_] + begin, std::min(kKvTouchBytes, size_ - begin));
  if (++buffer_ < buffers_.size()) return true;
  buffer_ = 0;
  ++touched_;
  return true;
}

}  // namespace millrace
