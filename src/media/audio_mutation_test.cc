// Files with seeded damage: whatever the bytes are, the answer is samples, as many as read_audio_info stated, or one of
// three errors.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "base/json.h"
#include "media/audio.h"
#include "media/data_url.h"
#include "media/testing/golden.h"
#include "media/testing/mutants.h"

namespace millrace {
namespace {

constexpr int kMutantsOfAFile = 150;
const std::string kFolder = std::string(MILLRACE_SOURCE_DIR) + "/tests/golden/audio/";

// CRC-32 of RFC 3533: polynomial 0x04C11DB7, not reflected, over the page with a checksum of 0.
uint32_t ogg_crc(std::span<const uint8_t> page) {
  uint32_t sum = 0;
  for (std::size_t i = 0; i < page.size(); ++i) {
    const uint8_t byte = i >= 22 && i < 26 ? 0 : page[i];
    sum ^= static_cast<uint32_t>(byte) << 24;
    for (int bit = 0; bit < 8; ++bit) sum = sum << 1 ^ (sum >> 31 != 0 ? 0x04C11DB7u : 0);
  }
  return sum;
}

// Damage inside of the pages, with checksums to match: it reaches the decoders of Vorbis and Opus.
Bytes ogg_mutant_of(const Bytes& original, Draw& draw) {
  Bytes bytes = original;
  for (std::size_t at = 0; at + 27 <= bytes.size();) {
    const std::size_t segments = bytes[at + 26];
    std::size_t size = 27 + segments;
    for (std::size_t i = 0; i < segments; ++i) size += bytes[at + 27 + i];
    for (std::size_t i = draw.below(4); i > 0 && size > 27 + segments; --i) {
      const std::size_t body = at + 27 + segments;
      bytes[body + draw.below(std::min<std::size_t>(size - 27 - segments, 400))] =
          static_cast<uint8_t>(draw.below(256));
    }
    if (draw.below(6) == 0) bytes[at + 6 + draw.below(8)] = static_cast<uint8_t>(draw.below(256));  // granule position
    const uint32_t sum = ogg_crc(std::span(bytes).subspan(at, size));
    for (std::size_t i = 0; i < 4; ++i) bytes[at + 22 + i] = static_cast<uint8_t>(sum >> 8 * i);
    at += size;
  }
  return bytes;
}

// Whether the file was decoded.
bool decodes(const Bytes& bytes, const std::string& name) {
  const auto samples = decode_audio(bytes);
  const auto info = read_audio_info(bytes);
  for (const Status& status : {samples.status(), info.status()}) {
    if (status.ok()) continue;
    EXPECT_FALSE(status.message().empty()) << name;
    EXPECT_TRUE(status.code() == StatusCode::kInvalidArgument || status.code() == StatusCode::kTooLarge ||
                status.code() == StatusCode::kUnsupported)
        << name << ": " << status.to_string();
  }
  if (!samples.ok()) return false;
  EXPECT_TRUE(info.ok()) << name << ": " << info.status().to_string();
  if (!info.ok()) return true;
  EXPECT_EQ(static_cast<int64_t>(samples->size()), info->samples) << name;
  EXPECT_TRUE(std::all_of(samples->begin(), samples->end(), [](float value) { return std::isfinite(value); })) << name;
  return true;
}

TEST(AudioMutation, AnyBytesGiveSamplesOrAnError) {
  const Json root = parse_json(read_text(kFolder + "files.json")).value();
  std::vector<std::pair<std::string, Bytes>> files;
  for (const char* name : {"speech.flac", "speech.ogg", "speech.opus", "speech.mp3", "plain.mp3"}) {
    files.emplace_back(name, read_bytes(kFolder + name));
  }
  for (const Json& one : root["wav"]) {
    files.emplace_back(one["name"].get<std::string>(), decode_base64(one["data"].get<std::string>(), 1 << 20).value());
  }
  int decoded = 0;
  int refused = 0;
  for (std::size_t f = 0; f < files.size(); ++f) {
    const auto& [name, bytes] = files[f];
    ASSERT_TRUE(decodes(bytes, name));
    Draw draw{f << 32};
    for (int i = 0; i < (f < 5 ? kMutantsOfAFile : 25); ++i) {
      ++(decodes(mutant_of(bytes, draw), fmt::format("{} mutant {}", name, i)) ? decoded : refused);
    }
  }
  EXPECT_GT(decoded, 200);  // the damage is not all in the first bytes
  EXPECT_GT(refused, 200);
}

TEST(AudioMutation, AnyPacketsGiveSamplesOrAnError) {
  int decoded = 0;
  for (const char* name : {"speech.ogg", "speech.opus"}) {
    const Bytes bytes = read_bytes(kFolder + name);
    Draw draw{77};
    for (int i = 0; i < kMutantsOfAFile; ++i)
      decoded += decodes(ogg_mutant_of(bytes, draw), fmt::format("{} {}", name, i));
  }
  EXPECT_GT(decoded, 20);
}

}  // namespace
}  // namespace millrace
