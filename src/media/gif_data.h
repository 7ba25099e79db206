// The two lower layers of a GIF file: its bytes with bounds checked, and the LZW codes of a frame's data blocks. For
// this folder alone. Thread safety: values; free functions.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "base/status.h"

namespace millrace::codecs {

inline constexpr int kMaxGifCodeBits = 12;

class GifCursor {
 public:
  GifCursor(std::span<const uint8_t> bytes, std::size_t at) : bytes_(bytes), at_(at) {}

  std::size_t at() const { return at_; }
  // nullopt: the bytes end.
  std::optional<std::span<const uint8_t>> take(std::size_t count) {
    if (count > bytes_.size() - at_) return std::nullopt;
    at_ += count;
    return bytes_.subspan(at_ - count, count);
  }
  std::optional<int> byte() {
    const auto one = take(1);
    return one ? std::optional<int>((*one)[0]) : std::nullopt;
  }
  // One data block, without its length; empty: the terminator, or the end of the bytes.
  std::span<const uint8_t> block() {
    const int length = byte().value_or(0);
    return take(static_cast<std::size_t>(length)).value_or(std::span<const uint8_t>{});
  }
  bool skip_blocks() {
    while (const auto length = byte()) {
      if (*length == 0) return true;
      if (!take(static_cast<std::size_t>(*length))) return false;
    }
    return false;
  }

 private:
  std::span<const uint8_t> bytes_;
  std::size_t at_;
};

// Fills `out` with palette indices from the data blocks at `offset`; the first code has code_bits + 1 bits.
// kInvalidArgument: corrupt, or fewer indices than `out` has; states how many came.
Status decode_gif_data(std::span<const uint8_t> bytes, std::size_t offset, int code_bits, std::span<uint8_t> out);

}  // namespace millrace::codecs
