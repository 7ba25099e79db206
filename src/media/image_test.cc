#include "media/image.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "base/json.h"
#include "base/testing/test_data.h"
#include "media/data_url.h"
#include "media/testing/golden.h"

namespace millrace {
namespace {

const std::string kGolden = std::string(MILLRACE_SOURCE_DIR) + "/tests/golden/media/";

struct Case {
  std::string name;
  std::vector<uint8_t> data;
  bool readable = false;  // by Pillow
  bool strict = false;    // refused here all the same
  int width = 0;
  int height = 0;
  uint32_t crc = 0;
};

std::vector<Case> golden_cases() {
  const auto root = parse_json(read_text(kGolden + "images.json"));
  CHECK(root.ok());
  std::vector<Case> cases;
  for (const Json& entry : *root) {
    Case& one = cases.emplace_back();
    one.name = entry["name"].get<std::string>();
    one.data = decode_base64(entry["data"].get<std::string>(), 1 << 20).value();
    one.strict = entry.contains("strict");
    one.readable = !entry["crc"].is_null();
    if (!one.readable) continue;
    one.width = entry["width"].get<int>();
    one.height = entry["height"].get<int>();
    one.crc = entry["crc"].get<uint32_t>();
  }
  return cases;
}

const Case& golden_case(const std::string& name) {
  static const std::vector<Case> cases = golden_cases();
  for (const Case& one : cases) {
    if (one.name == name) return one;
  }
  ADD_FAILURE() << "no golden case " << name;
  std::abort();
}

TEST(Image, PixelsOfPillow) {
  const std::vector<Case> cases = golden_cases();
  ASSERT_GT(cases.size(), 150u);
  for (const Case& one : cases) {
    const auto image = decode_image(one.data);
    if (!one.readable || one.strict) {
      EXPECT_FALSE(image.ok()) << one.name << " is refused by Pillow, or by the stricter rule of image.h";
      continue;
    }
    ASSERT_TRUE(image.ok()) << one.name << ": " << image.status().to_string();
    EXPECT_EQ(image->width(), one.width) << one.name;
    EXPECT_EQ(image->height(), one.height) << one.name;
    EXPECT_EQ(crc32(image->bytes()), one.crc) << one.name;
  }
}

TEST(Image, EveryTruncationOfEachFormatIsAnError) {
  for (const char* name :
       {"jpeg 17x31 4:2:0", "jpeg progressive", "jpeg cmyk", "png color 6 depth 8 13x11 interlaced True",
        "webp 17x31 lossless True", "webp 17x31 alpha lossless False", "gif smaller frame"}) {
    const Case& one = golden_case(name);
    // What may be missing without a pixel missing: PNG's last chunk and checksum, GIF's trailer and terminator.
    const std::size_t spare = one.name.starts_with("png") ? 24 : one.name.starts_with("gif") ? 6 : 0;
    for (std::size_t size = 0; size + spare < one.data.size(); ++size) {
      const auto image = decode_image(std::span(one.data).first(size));
      ASSERT_FALSE(image.ok()) << name << " cut to " << size << " of " << one.data.size();
      EXPECT_EQ(image.status().code(), StatusCode::kInvalidArgument) << name << ": " << image.status().to_string();
    }
  }
}

TEST(Image, Headers) {
  const auto turned = read_image_header(golden_case("jpeg orientation 6").data);
  ASSERT_TRUE(turned.ok());
  EXPECT_EQ(turned->format, ImageFormat::kJpeg);
  EXPECT_EQ(turned->width, 35);  // as stored
  EXPECT_EQ(turned->height, 27);
  EXPECT_EQ(turned->orientation, 6);
  EXPECT_FALSE(turned->animated);
  for (const char* format : {"png", "webp", "gif"}) {
    const auto info = read_image_header(golden_case(std::string(format) + " animated").data);
    ASSERT_TRUE(info.ok()) << format;
    EXPECT_EQ(info->width, 14) << format;
    EXPECT_EQ(info->height, 9) << format;
    EXPECT_TRUE(info->animated) << format;
  }
  EXPECT_FALSE(read_image_header(golden_case("gif smaller frame").data)->animated);
  EXPECT_FALSE(read_image_header(golden_case("webp 1x1 lossless True").data)->animated);
}

// A header that promises 4 GB of pixels, in a file of 100 bytes.
TEST(Image, BombsAreRefusedByTheirHeader) {
  std::vector<uint8_t> png = golden_case("png color 2 depth 8 13x11 interlaced False").data;
  for (const std::size_t at : {std::size_t{18}, std::size_t{22}}) png[at] = 0xFF;
  std::vector<uint8_t> gif = golden_case("gif no palette").data;
  for (std::size_t at = 6; at < 10; ++at) gif[at] = 0xFF;
  std::vector<uint8_t> jpeg = golden_case("jpeg 8x8 4:4:4").data;
  for (std::size_t at = 2; at + 9 < jpeg.size(); ++at) {
    if (jpeg[at] == 0xFF && jpeg[at + 1] == 0xC0) {
      for (const std::size_t field : {at + 5, at + 6, at + 7, at + 8}) jpeg[field] = 0xF0;
    }
  }
  for (const std::vector<uint8_t>& bomb : {png, gif, jpeg}) {
    const auto image = decode_image(bomb);
    ASSERT_FALSE(image.ok());
    EXPECT_EQ(image.status().code(), StatusCode::kTooLarge) << image.status().to_string();
    EXPECT_NE(image.status().message().find("wanted at most"), std::string::npos) << image.status().message();
  }
}

TEST(Image, EachLimitNamesBothValues) {
  const std::vector<uint8_t>& data = golden_case("png color 2 depth 8 13x11 interlaced False").data;
  const auto message = [&](ImageLimits limits) {
    const auto image = decode_image(data, limits);
    EXPECT_EQ(image.status().code(), StatusCode::kTooLarge);
    return image.status().message();
  };
  EXPECT_TRUE(decode_image(data, {.encoded_bytes = data.size(), .pixels = 143, .edge = 13}).ok());
  EXPECT_EQ(message({.encoded_bytes = data.size() - 1}),
            fmt::format("the image has {} bytes; wanted at most {}", data.size(), data.size() - 1));
  EXPECT_EQ(message({.pixels = 142}), "the image is 13 x 11, 143 pixels; wanted at most 142 pixels");
  EXPECT_EQ(message({.edge = 12}), "the image is 13 x 11; wanted at most 12 on each edge");
}

TEST(Image, ErrorsStateWhatWasSeen) {
  const auto message = [](std::string_view text) {
    return decode_image({reinterpret_cast<const uint8_t*>(text.data()), text.size()}).status().message();
  };
  EXPECT_EQ(message(""), "the image has 0 bytes; wanted a JPEG, PNG, WebP or GIF file");
  EXPECT_EQ(message("BM6"), "the image begins with the bytes 42 4d 36; wanted a JPEG, PNG, WebP or GIF file");
  const auto cut = decode_image(golden_case("jpeg truncated without end").data);
  EXPECT_EQ(cut.status().message(), "JPEG: it is truncated; wanted an end-of-image marker");
}

// The scans of a progressive file again and again: each visits all pixels.
TEST(Image, AProgressiveFileOfManyScansIsRefused) {
  const std::vector<uint8_t>& data = golden_case("jpeg progressive").data;
  std::size_t scan = 2;
  while (!(data[scan] == 0xFF && data[scan + 1] == 0xDA)) ++scan;
  std::size_t end = scan + 2;
  while (!(data[end] == 0xFF && data[end + 1] != 0 && data[end + 1] != 0xFF)) ++end;
  std::vector<uint8_t> bomb(data.begin(), data.begin() + static_cast<std::ptrdiff_t>(scan));
  for (int i = 0; i < 2 * kMaxJpegScans; ++i) {
    bomb.insert(bomb.end(), data.begin() + static_cast<std::ptrdiff_t>(scan),
                data.begin() + static_cast<std::ptrdiff_t>(end));
  }
  bomb.insert(bomb.end(), {0xFF, 0xD9});
  const auto image = decode_image(bomb);
  ASSERT_FALSE(image.ok());
  EXPECT_EQ(image.status().message(),
            fmt::format("JPEG: it has a scan {0}; wanted at most {1}", kMaxJpegScans + 1, kMaxJpegScans));
}

TEST(Image, PhotographsHaveThePixelsOfPillow) {
  const std::filesystem::path folder = test_data("media/images");
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << no_test_data("media/images");
  const auto root = parse_json(read_text(kGolden + "photographs.json"));
  ASSERT_TRUE(root.ok());
  ASSERT_EQ(root->size(), 10u);
  for (const auto& [name, wanted] : root->items()) {
    const auto image = decode_image(read_bytes((folder / name).string()));
    ASSERT_TRUE(image.ok()) << name << ": " << image.status().to_string();
    EXPECT_EQ(image->width(), wanted["width"].get<int>()) << name;
    EXPECT_EQ(crc32(image->bytes()), wanted["crc"].get<uint32_t>()) << name;
  }
}

}  // namespace
}  // namespace millrace
