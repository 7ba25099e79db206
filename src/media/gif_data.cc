#include "media/gif_data.h"

#include <algorithm>
#include <vector>

namespace millrace::codecs {
namespace {

constexpr int kMaxCodes = 1 << kMaxGifCodeBits;

// LZW codes, least significant bit first, across the data blocks.
class CodeReader {
 public:
  CodeReader(std::span<const uint8_t> bytes, std::size_t at) : cursor_(bytes, at) {}

  // -1: the data ends.
  int next(int bits) {
    while (count_ < bits) {
      if (block_.empty() && (block_ = cursor_.block()).empty()) return -1;
      held_ |= static_cast<uint32_t>(block_[0]) << count_;
      block_ = block_.subspan(1);
      count_ += 8;
    }
    const int code = static_cast<int>(held_ & ((1u << bits) - 1));
    held_ >>= bits;
    count_ -= bits;
    return code;
  }

 private:
  GifCursor cursor_;
  std::span<const uint8_t> block_;
  uint32_t held_ = 0;
  int count_ = 0;
};

// Each code is the code before it and one more index; lengths are kept so that a string is written from its end.
class Lzw {
 public:
  explicit Lzw(int bits)
      : clear_(1 << bits), first_bits_(bits + 1), prefix_(kMaxCodes), last_(kMaxCodes), length_(kMaxCodes) {
    for (int i = 0; i < clear_; ++i) {
      last_[static_cast<std::size_t>(i)] = static_cast<uint8_t>(i);
      length_[static_cast<std::size_t>(i)] = 1;
    }
  }

  // Fills `out`. An error states how many indices came.
  Status decode(CodeReader& codes, std::span<uint8_t> out) {
    std::size_t done = 0;
    int bits = first_bits_;
    int next = clear_ + 2;
    int previous = -1;
    while (done < out.size()) {
      const int code = codes.next(bits);
      if (code < 0 || code == clear_ + 1) {
        return invalid_argument("its data ends after {} of {} pixels", done, out.size());
      }
      if (code == clear_) {
        bits = first_bits_;
        next = clear_ + 2;
        previous = -1;
        continue;
      }
      if (code > next || (code == next && (previous < 0 || next >= kMaxCodes)) || (previous < 0 && code > clear_)) {
        return invalid_argument("its data is corrupt after {} of {} pixels: code {}; wanted at most {}", done,
                                out.size(), code, next);
      }
      if (previous >= 0 && next < kMaxCodes) {
        add(next, previous, first_index(code == next ? previous : code));
        if (++next == 1 << bits && bits < kMaxGifCodeBits) ++bits;
      }
      done += write(code, out.subspan(done));
      previous = code;
    }
    return ok_status();
  }

 private:
  void add(int code, int prefix, uint8_t index) {
    prefix_[static_cast<std::size_t>(code)] = static_cast<uint16_t>(prefix);
    last_[static_cast<std::size_t>(code)] = index;
    length_[static_cast<std::size_t>(code)] = static_cast<uint16_t>(length_[static_cast<std::size_t>(prefix)] + 1);
  }
  uint8_t first_index(int code) const {
    while (code > clear_) code = prefix_[static_cast<std::size_t>(code)];
    return last_[static_cast<std::size_t>(code)];
  }
  // As much of the code's string as fits.
  std::size_t write(int code, std::span<uint8_t> out) const {
    const std::size_t length = length_[static_cast<std::size_t>(code)];
    for (std::size_t i = length; i-- > 0; code = prefix_[static_cast<std::size_t>(code)]) {
      if (i < out.size()) out[i] = last_[static_cast<std::size_t>(code)];
    }
    return std::min(length, out.size());
  }

  int clear_;
  int first_bits_;
  std::vector<uint16_t> prefix_;
  std::vector<uint8_t> last_;
  std::vector<uint16_t> length_;
};

}  // namespace

Status decode_gif_data(std::span<const uint8_t> bytes, std::size_t offset, int code_bits, std::span<uint8_t> out) {
  CodeReader codes(bytes, offset);
  return Lzw(code_bits).decode(codes, out);
}

}  // namespace millrace::codecs
