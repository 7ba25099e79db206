#include "media/audio_container.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "media/ogg_pages.h"

namespace millrace::audio {
namespace {

using Bytes = std::span<const uint8_t>;

bool has(Bytes bytes, std::size_t offset, std::string_view text) {
  return bytes.size() >= offset + text.size() && std::memcmp(bytes.data() + offset, text.data(), text.size()) == 0;
}
uint32_t u16(Bytes bytes, std::size_t at) { return bytes[at] | static_cast<uint32_t>(bytes[at + 1]) << 8; }
uint32_t u32(Bytes bytes, std::size_t at) { return u16(bytes, at) | u16(bytes, at + 2) << 16; }
uint32_t big_u32(Bytes bytes, std::size_t at) {
  return static_cast<uint32_t>(bytes[at]) << 24 | static_cast<uint32_t>(bytes[at + 1]) << 16 |
         static_cast<uint32_t>(bytes[at + 2]) << 8 | bytes[at + 3];
}

// By the first packet, which begins the first page.
Result<Container> find_codec(Bytes bytes) {
  const std::size_t packet = kOggPageHeader + (bytes.size() < kOggPageHeader ? 0 : bytes[kOggPageHeader - 1]);
  if (has(bytes, packet, "\x01vorbis")) return Container::kVorbis;
  if (has(bytes, packet, "OpusHead")) return Container::kOpus;
  if (bytes.size() < packet + 8) return invalid_argument("Ogg: it is truncated to {} bytes", bytes.size());
  return error(StatusCode::kUnsupported, "Ogg: its first stream is neither Vorbis nor Opus");
}

Status check_ogg(Bytes bytes) {
  std::size_t at = 0;
  bool last = false;
  uint32_t serial = 0;
  while (at < bytes.size()) {
    const std::size_t size = ogg_page_size(bytes, at);
    if (size > 0 && !is_ogg_page(bytes, at)) return invalid_argument("no page begins at byte {}", at);
    if (size == 0) return invalid_argument("it is truncated: its {} bytes end in a page", bytes.size());
    if (at == 0) serial = u32(bytes, kOggSerial);
    if (last || u32(bytes, at + kOggSerial) != serial) {
      return error(StatusCode::kUnsupported, "it has another stream at byte {}; wanted one stream", at);
    }
    last = (bytes[at + 5] & 4) != 0;
    at += size;
  }
  if (!last) return invalid_argument("it is truncated: none of its pages is marked as the last");
  return ok_status();
}

// Behind an ID3v2 tag at `at`, which may be none.
std::size_t behind_id3(Bytes bytes, std::size_t at) {
  if (!has(bytes, at, "ID3") || bytes.size() - at < 10) return at;
  std::size_t size = 0;
  for (std::size_t i = at + 6; i < at + 10; ++i) size = size << 7 | (bytes[i] & 0x7Fu);
  return at + 10 + size;
}

// The first frame of many MP3 files holds no sound but a header, 4 to 40 bytes after the frame's own. Where it is; 0:
// the frame at `at` has none.
std::size_t find_xing(Bytes bytes, std::size_t at) {
  for (std::size_t i = at + 4; i <= at + 40; ++i) {
    if (has(bytes, i, "Xing") || has(bytes, i, "Info")) return i;
  }
  return 0;
}

// The header states the number of bytes. The decoder ends where they do, and would leave out a second file behind them,
// as of two that were put together.
Status check_mp3(Bytes bytes) {
  const std::size_t at = behind_id3(bytes, 0), header = find_xing(bytes, at);
  if (header == 0 || bytes.size() - header < 16) return ok_status();
  const uint32_t flags = big_u32(bytes, header + 4);
  if ((flags & 2) == 0) return ok_status();
  const uint32_t stated = big_u32(bytes, header + ((flags & 1) != 0 ? 12 : 8));
  if (stated > bytes.size()) {
    return invalid_argument("it is truncated: it has {} bytes; wanted {}, as its header states", bytes.size(), stated);
  }
  const std::size_t next = behind_id3(bytes, at + stated);
  const bool frame = next + 1 < bytes.size() && bytes[next] == 0xFF && (bytes[next + 1] & 0xE0) == 0xE0;
  if (!frame || find_xing(bytes, next) == 0) return ok_status();
  return error(StatusCode::kUnsupported, "it has another MP3 at byte {}; wanted one", next);
}

}  // namespace

std::string_view container_name(Container container) {
  switch (container) {
    case Container::kWav:
      return "WAV";
    case Container::kFlac:
      return "FLAC";
    case Container::kVorbis:
      return "Ogg Vorbis";
    case Container::kOpus:
      return "Ogg Opus";
    case Container::kMp3:
      return "MP3";
  }
  return "unknown";
}

Result<Container> find_container(Bytes bytes) {
  if (has(bytes, 0, "RIFF") && has(bytes, 8, "WAVE")) return Container::kWav;
  if (has(bytes, 0, "fLaC")) return Container::kFlac;
  if (has(bytes, 0, "OggS")) return find_codec(bytes);
  if (has(bytes, 0, "ID3")) return Container::kMp3;
  if (bytes.size() >= 2 && bytes[0] == 0xFF && (bytes[1] & 0xE6) == 0xE2) return Container::kMp3;  // layer III
  std::string seen;
  for (std::size_t i = 0; i < std::min<std::size_t>(bytes.size(), 8); ++i) seen += fmt::format(" {:02x}", bytes[i]);
  if (seen.empty()) return invalid_argument("the audio has 0 bytes; wanted a WAV, FLAC, Ogg or MP3 file");
  return invalid_argument("the audio begins with the bytes{}; wanted a WAV, FLAC, Ogg (Vorbis, Opus) or MP3 file",
                          seen);
}

Status check_structure(Container container, Bytes bytes) {
  if (container == Container::kVorbis || container == Container::kOpus) return check_ogg(bytes);
  if (container == Container::kMp3) return check_mp3(bytes);
  return ok_status();
}

Status check_shape(int64_t rate, int64_t channels, const AudioLimits& limits) {
  if (channels < 1 || channels > limits.max_channels) {
    return invalid_argument("the audio has {} channels; wanted 1 to {}", channels, limits.max_channels);
  }
  if (rate < limits.min_rate || rate > limits.max_rate) {
    return invalid_argument("the audio has {} samples a second; wanted {} to {}", rate, limits.min_rate,
                            limits.max_rate);
  }
  return ok_status();
}

Status check_length(int64_t frames, int64_t rate, const AudioLimits& limits) {
  if (frames < 1) return invalid_argument("the audio has 0 samples; wanted at least 1");
  const double seconds = static_cast<double>(frames) / static_cast<double>(rate);
  if (seconds > limits.max_seconds) {
    return error(StatusCode::kTooLarge, "the audio has {:.1f} seconds; wanted at most {}", seconds, limits.max_seconds);
  }
  return ok_status();
}

}  // namespace millrace::audio
