#include "media/frame_pack.h"

#include <array>
#include <cstring>

namespace millrace {
namespace {

constexpr std::array<char, 8> kMagic = {'M', 'R', 'F', 'R', 'A', 'M', 'E', '1'};
constexpr uint32_t kMaxFrames = 64;  // of one pack
constexpr uint32_t kMaxEdge = 65535;

struct Head {
  std::array<char, 8> magic = kMagic;
  uint32_t frames = 0, width = 0, height = 0;
};
static_assert(sizeof(Head) == kPackHeadBytes);

}  // namespace

std::string pack_frames(std::span<const Image> frames) {
  CHECK(!frames.empty() && frames.size() <= kMaxFrames);
  const Head head{.frames = static_cast<uint32_t>(frames.size()),
                  .width = static_cast<uint32_t>(frames[0].width()),
                  .height = static_cast<uint32_t>(frames[0].height())};
  std::string out(reinterpret_cast<const char*>(&head), sizeof head);
  for (const Image& frame : frames) {
    CHECK(frame.width() == frames[0].width() && frame.height() == frames[0].height());
    out.append(reinterpret_cast<const char*>(frame.bytes().data()), frame.size_bytes());
  }
  return out;
}

bool is_frame_pack(std::span<const uint8_t> bytes) {
  return bytes.size() >= sizeof(Head) && std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) == 0;
}

Result<std::vector<Image>> unpack_frames(std::span<const uint8_t> bytes) {
  Head head;
  if (is_frame_pack(bytes)) std::memcpy(&head, bytes.data(), sizeof head);
  const bool edges = head.width >= 1 && head.height >= 1 && head.width <= kMaxEdge && head.height <= kMaxEdge;
  const uint64_t size = uint64_t{head.width} * head.height * 3;
  if (!edges || head.frames < 1 || head.frames > kMaxFrames || bytes.size() != sizeof head + head.frames * size) {
    return invalid_argument("{} bytes are no {} frames of {} x {}; wanted those of a video", bytes.size(), head.frames,
                            head.width, head.height);
  }
  std::vector<Image> out;
  bytes = bytes.subspan(sizeof head);
  for (uint32_t i = 0; i < head.frames; ++i, bytes = bytes.subspan(size)) {
    Image& image = out.emplace_back(static_cast<int>(head.width), static_cast<int>(head.height));
    std::memcpy(image.row(0), bytes.data(), size);
  }
  return out;
}

}  // namespace millrace
