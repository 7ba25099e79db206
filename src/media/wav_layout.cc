#include "media/wav_layout.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>

#include "media/audio_container.h"

namespace millrace::audio {
namespace {

using Bytes = std::span<const uint8_t>;

constexpr uint32_t kUnknownSize = 0xFFFFFFFFu;
constexpr uint32_t kExtensible = 0xFFFE;

bool is_chunk(Bytes bytes, std::size_t at, std::string_view name) {
  return std::memcmp(bytes.data() + at, name.data(), 4) == 0;
}
uint32_t u16(Bytes bytes, std::size_t at) { return bytes[at] | static_cast<uint32_t>(bytes[at + 1]) << 8; }
uint32_t u32(Bytes bytes, std::size_t at) { return u16(bytes, at) | u16(bytes, at + 2) << 16; }

bool is_read(uint32_t tag, uint32_t bits) {
  switch (tag) {
    case 1:
      return bits == 8 || bits == 16 || bits == 24 || bits == 32;
    case 3:
      return bits == 32 || bits == 64;
    case 6:
    case 7:
      return bits == 8;
    default:
      return false;
  }
}

// The body of the chunk "fmt ": https://www.mmsp.ece.mcgill.ca/Documents/AudioFormats/WAVE/WAVE.html
Result<WavLayout> read_format(Bytes chunk, const AudioLimits& limits) {
  if (chunk.size() < 16) return invalid_argument("its chunk fmt has {} bytes; wanted at least 16", chunk.size());
  uint32_t tag = u16(chunk, 0);
  if (tag == kExtensible) {  // the tag begins the GUID of the encoding
    if (chunk.size() < 40) return invalid_argument("its extensible chunk fmt has {} bytes; wanted 40", chunk.size());
    tag = u16(chunk, 24);
  }
  const uint32_t channels = u16(chunk, 2);
  const uint32_t rate = u32(chunk, 4);
  const uint32_t frame_bytes = u16(chunk, 12);
  const uint32_t bits = u16(chunk, 14);
  if (!is_read(tag, bits)) {
    return error(
        StatusCode::kUnsupported,
        "its encoding is {} with {} bits; wanted PCM (1) of 8, 16, 24 or 32 bits, float (3) of 32 or 64, A-law "
        "(6) or u-law (7)",
        tag, bits);
  }
  RETURN_IF_ERROR(check_shape(rate, channels, limits));
  if (frame_bytes != channels * bits / 8) {
    return invalid_argument("a frame of {} channels with {} bits has {} bytes; wanted {}", channels, bits, frame_bytes,
                            channels * bits / 8);
  }
  return WavLayout{static_cast<WavLayout::Encoding>(tag),
                   static_cast<int>(bits),
                   static_cast<int>(channels),
                   static_cast<int>(rate),
                   {}};
}

}  // namespace

Result<WavLayout> read_wav_layout(Bytes bytes, const AudioLimits& limits) {
  CHECK(bytes.size() >= 12);
  const uint32_t riff_size = u32(bytes, 4);
  std::optional<WavLayout> layout;
  std::size_t at = 12;
  while (bytes.size() - at >= 8) {
    const uint32_t size = u32(bytes, at + 4);
    const std::size_t left = bytes.size() - at - 8;
    if (is_chunk(bytes, at, "data")) {
      if (!layout) return invalid_argument("its samples come before a chunk fmt");
      const bool streamed = size == kUnknownSize && riff_size == kUnknownSize;
      if (!streamed && size > left) {
        return invalid_argument("its samples have {} bytes; wanted {}, as its header states", left, size);
      }
      const auto frame_bytes = static_cast<std::size_t>(layout->channels * layout->bits / 8);
      const std::size_t frames = (streamed ? left : size) / frame_bytes;
      RETURN_IF_ERROR(check_length(static_cast<int64_t>(frames), layout->rate, limits));
      layout->samples = bytes.subspan(at + 8, frames * frame_bytes);
      return *layout;
    }
    if (size > left) return invalid_argument("a chunk of {} bytes has {} in the file", size, left);
    if (is_chunk(bytes, at, "fmt ") && !layout) {
      ASSIGN_OR_RETURN(layout, read_format(bytes.subspan(at + 8, size), limits));
    }
    at += std::min<std::size_t>(8 + std::size_t{size} + size % 2, bytes.size() - at);  // the last may lack its padding
  }
  return invalid_argument("it has no chunk data in {} bytes", bytes.size());
}

}  // namespace millrace::audio
