#include "relay/ucx/frame.h"

#include <bit>
#include <cstring>

#include "relay/ucx/layout.h"

namespace millrace::ucx {

static_assert(std::endian::native == std::endian::little, "the layout is written as it lies in memory");

namespace {

struct Kind {
  uint8_t flags;  // which may be set
  bool code;      // whether `code` has a meaning
  std::size_t min_payload;
  std::size_t max_payload;
};

Kind kind_of(FrameType type) {
  switch (type) {
    case FrameType::kGet:
      return {kFlagByMessage, false, 0, 0};
    case FrameType::kData:
      return {kFlagSum, false, 0, kSegmentBytes};
    case FrameType::kSlot:
      return {0, false, 1, kMaxKeyBytes};
    case FrameType::kRefuse:
      return {0, true, 0, kMaxErrorText};
    case FrameType::kRelease:
      return {kFlagAnswer, true, 0, 0};
    case FrameType::kReleased:
      return {0, true, 0, 0};
    default:
      return {0, false, 0, 0};
  }
}

}  // namespace

std::optional<Frame> decode_frame(std::span<const std::byte> head, std::size_t payload_bytes) {
  if (head.size() != sizeof(Frame)) return std::nullopt;
  Frame frame;
  std::memcpy(&frame, head.data(), sizeof(frame));
  if (std::memcmp(frame.magic, "MRUX", sizeof(frame.magic)) != 0 || frame.version != kFrameVersion) return std::nullopt;
  if (frame.type < FrameType::kHello || frame.type > FrameType::kBye) return std::nullopt;
  const Kind kind = kind_of(frame.type);
  if ((frame.flags & ~(kind.flags | kFlagWriter)) != 0 || frame.bytes != payload_bytes) return std::nullopt;
  if (payload_bytes < kind.min_payload || payload_bytes > kind.max_payload) return std::nullopt;
  if (frame.code > (kind.code ? static_cast<uint8_t>(StatusCode::kInternal) : 0)) return std::nullopt;
  if (frame.type == FrameType::kRefuse && frame.code == 0) return std::nullopt;
  return frame;
}

}  // namespace millrace::ucx
