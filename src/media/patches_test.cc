#include "media/patches.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "media/testing/golden.h"

namespace millrace {
namespace {

const Json& golden() {
  static const Json root =
      parse_json(read_text(std::string(MILLRACE_SOURCE_DIR) + "/tests/golden/media/patches.json")).value();
  return root;
}

PatchConfig config_of(const Json& json) {
  PatchConfig config;
  config.patch_size = json.value("patch_size", 16);
  config.temporal_patch_size = json.value("temporal_patch_size", 2);
  config.merge_size = json.value("merge_size", 2);
  config.min_pixels = json.value("min_pixels", int64_t{1});
  config.max_pixels = json.value("max_pixels", int64_t{1});
  config.resize = json.value("do_resize", true);
  config.rescale = json.value("do_rescale", true);
  config.normalize = json.value("do_normalize", true);
  config.rescale_factor = json.value("rescale_factor", 1 / 255.0);
  config.mean = json.at("image_mean").get<std::array<double, 3>>();
  config.std = json.at("image_std").get<std::array<double, 3>>();
  return config;
}

Result<Patches> run(const Json& one) {
  const Image image = noise_image(one["width"].get<int>(), one["height"].get<int>(), one["seed"].get<uint64_t>());
  return make_patches(image, config_of(one["config"]));
}

std::vector<int> list_of(PatchGrid grid) { return {grid.t, grid.h, grid.w}; }

TEST(Patches, BitsOfTransformers) {
  ASSERT_GE(golden()["images"].size(), 21u);
  for (const Json& one : golden()["images"]) {
    const auto patches = run(one);
    ASSERT_TRUE(patches.ok()) << one.dump() << patches.status().to_string();
    EXPECT_EQ(list_of(patches->grid), one["grid"].get<std::vector<int>>()) << one.dump();
    EXPECT_EQ(patches->row_size, one["row_size"].get<int>()) << one.dump();
    const std::span<const float> all = patches->all();
    EXPECT_EQ(crc32({reinterpret_cast<const uint8_t*>(all.data()), all.size_bytes()}), one["crc"].get<uint32_t>())
        << one.dump();
  }
}

TEST(Patches, EachNumberOfOneImage) {
  const Json& one = golden()["complete"];
  const auto patches = run(one);
  ASSERT_TRUE(patches.ok()) << patches.status().to_string();
  const auto wanted = one["values"].get<std::vector<float>>();
  ASSERT_EQ(patches->all().size(), wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_EQ(patches->all()[i], wanted[i])
        << "row " << i / static_cast<std::size_t>(patches->row_size) << ", number " << i;
  }
}

TEST(Patches, SizesOfTransformers) {
  ASSERT_GT(golden()["sizes"].size(), 3000u);
  for (const Json& one : golden()["sizes"]) {
    PatchConfig config;
    config.merge_size = 2;
    config.patch_size = one[2].get<int>() / 2;
    config.min_pixels = one[3].get<int64_t>();
    config.max_pixels = one[4].get<int64_t>();
    const auto size = smart_resize({one[0].get<int>(), one[1].get<int>()}, config);
    if (one[5].is_null()) {
      EXPECT_EQ(size.status().code(), StatusCode::kInvalidArgument) << one.dump();
      continue;
    }
    ASSERT_TRUE(size.ok()) << one.dump() << size.status().to_string();
    EXPECT_EQ(*size, (ImageSize{one[5].get<int>(), one[6].get<int>()})) << one.dump();
  }
}

TEST(Patches, ErrorsNameBothValues) {
  EXPECT_EQ(smart_resize({201, 1}, {}).status().message(),
            "the image is 201 x 1, an aspect ratio of 201.0; wanted at most 200");
  EXPECT_EQ(smart_resize({0, 5}, {}).status().message(), "the image is 0 x 5; wanted at least 1 x 1");
  PatchConfig fixed;
  fixed.resize = false;
  EXPECT_EQ(patch_grid({96, 65}, fixed).status().message(),
            "the image is 96 x 65 and do_resize is false; wanted multiples of 32");
  EXPECT_EQ(*patch_grid({96, 64}, fixed), (PatchGrid{1, 4, 6}));
}

}  // namespace
}  // namespace millrace
