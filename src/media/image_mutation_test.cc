// Pictures with seeded damage on their way from a client to patches: whatever the bytes are, the answer is the patches
// that the header promised, or one of three errors.
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "base/json.h"
#include "media/data_url.h"
#include "media/image.h"
#include "media/patches.h"
#include "media/resize.h"
#include "media/testing/golden.h"
#include "media/testing/mutants.h"

namespace millrace {
namespace {

constexpr int kMutants = 10'000;
// Small enough that a header which promises many pixels costs little.
const ImageLimits kLimits{.encoded_bytes = 1u << 20, .pixels = 1 << 20};
const PatchConfig kPatches{.min_pixels = 64 * 64, .max_pixels = 128 * 128};

void expect_reason(const Status& status, const std::string& name) {
  EXPECT_FALSE(status.message().empty()) << name;
  EXPECT_TRUE(status.code() == StatusCode::kInvalidArgument || status.code() == StatusCode::kTooLarge ||
              status.code() == StatusCode::kUnsupported)
      << name << ": " << status.to_string();
}

// The steps of the server, which reads the header, and of the process with the model, which decodes.
Status to_patches(const Bytes& bytes, const std::string& name) {
  ASSIGN_OR_RETURN(const ImageInfo info, read_image_header(bytes));
  const ImageSize stored{info.width, info.height};
  const ImageSize shown = info.orientation >= 5 ? ImageSize{info.height, info.width} : stored;
  ASSIGN_OR_RETURN(const PatchGrid grid, patch_grid(shown, kPatches));
  ASSIGN_OR_RETURN(const Image image, decode_image(bytes, kLimits));
  EXPECT_EQ(image.width(), shown.width) << name;
  EXPECT_EQ(image.height(), shown.height) << name;
  PatchConfig as_it_is = kPatches;
  as_it_is.resize = false;
  const int width = grid.w * kPatches.patch_size, height = grid.h * kPatches.patch_size;
  ASSIGN_OR_RETURN(const Patches patches, make_patches(resize_bicubic(image, width, height), as_it_is));
  EXPECT_EQ(patches.grid, grid) << name;
  return ok_status();
}

// Damage inside of PNG's chunks, with checksums to match: it reaches zlib, the filters and the palette.
Bytes png_mutant_of(const Bytes& original, Draw& draw) {
  Bytes bytes = original;
  for (std::size_t at = 8; at + 12 <= bytes.size();) {
    const std::size_t length = std::size_t{bytes[at]} << 24 | std::size_t{bytes[at + 1]} << 16 |
                               std::size_t{bytes[at + 2]} << 8 | bytes[at + 3];
    if (length > bytes.size() - at - 12) break;
    for (std::size_t i = draw.below(3); i > 0 && length > 0; --i) {
      bytes[at + 8 + draw.below(length)] = static_cast<uint8_t>(draw.below(256));
    }
    const uint32_t sum = crc32(std::span(bytes).subspan(at + 4, length + 4));
    for (std::size_t i = 0; i < 4; ++i) bytes[at + 8 + length + i] = static_cast<uint8_t>(sum >> (24 - 8 * i));
    at += length + 12;
  }
  return bytes;
}

TEST(ImageMutation, AnyChunksGivePatchesOrAnError) {
  const Json root = parse_json(read_text(MILLRACE_SOURCE_DIR "/tests/golden/media/images.json")).value();
  int decoded = 0, refused = 0;
  for (const Json& one : root) {
    const auto name = one["name"].get<std::string>();
    if (!name.starts_with("png") || one["crc"].is_null()) continue;
    const Bytes bytes = decode_base64(one["data"].get<std::string>(), 1 << 20).value();
    Draw draw{77};
    for (int i = 0; i < 40; ++i) {
      const std::string mutant = fmt::format("{} mutant {}", name, i);
      const Status status = to_patches(png_mutant_of(bytes, draw), mutant);
      if (!status.ok()) expect_reason(status, mutant);
      ++(status.ok() ? decoded : refused);
    }
  }
  EXPECT_GT(decoded, 100);
  EXPECT_GT(refused, 100);
}

TEST(ImageMutation, AnyBytesGivePatchesOrAnError) {
  const Json root = parse_json(read_text(MILLRACE_SOURCE_DIR "/tests/golden/media/images.json")).value();
  std::vector<std::pair<std::string, Bytes>> files;
  for (const Json& one : root) {
    if (one["crc"].is_null()) continue;
    files.emplace_back(one["name"].get<std::string>(), decode_base64(one["data"].get<std::string>(), 1 << 20).value());
  }
  ASSERT_GT(files.size(), 100u);
  int decoded = 0, refused = 0;
  for (int i = 0; i < kMutants; ++i) {
    const auto& [name, bytes] = files[static_cast<std::size_t>(i) % files.size()];
    Draw draw{static_cast<uint64_t>(i) << 32};
    const std::string mutant = fmt::format("{} mutant {}", name, i);
    const Status status = to_patches(mutant_of(bytes, draw), mutant);
    if (!status.ok()) expect_reason(status, mutant);
    ++(status.ok() ? decoded : refused);
  }
  EXPECT_GT(decoded, kMutants / 50);  // the damage is not all in the first bytes
  EXPECT_GT(refused, kMutants / 50);
}

TEST(ImageMutation, AnyDataUrlGivesBytesOrAnError) {
  const std::string url = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGNgYGBg";
  Draw draw{5};
  int read = 0;
  for (int i = 0; i < 2'000; ++i) {
    const Bytes mutant = mutant_of({url.begin(), url.end()}, draw);
    const auto result = read_data_url(std::string(mutant.begin(), mutant.end()), 64);
    if (!result.ok()) expect_reason(result.status(), fmt::format("mutant {}", i));
    if (result.ok()) {
      EXPECT_LE(result->bytes.size(), 64u);
    }
    read += result.ok() ? 1 : 0;
  }
  EXPECT_GT(read, 20);
}

}  // namespace
}  // namespace millrace
