// The tower and the positions against Hugging Face transformers (tests/golden/vision, tests/oracles/vision_tiny.py and
// vision_tower.py).
#include "models/vision/vision_tower.h"

#include <gtest/gtest.h>

#include <cmath>

#include "models/testing/model_testing.h"
#include "models/vision/mrope.h"

namespace millrace {
namespace {

constexpr int kCases = 3;
constexpr bool kGoOn = true;

struct Golden {
  ModelDir dir;
  std::shared_ptr<const VisionTower> tower;
  WeightStore values;
};

Golden open_golden(const std::string& name) {
  const std::string path = std::string(MILLRACE_SOURCE_DIR) + "/tests/golden/vision/" + name;
  auto dir = open_model_dir(path);
  CHECK(dir.ok());
  auto store = WeightStore::open(path);
  CHECK(store.ok());
  auto tower = VisionTower::load(*dir->config.vision, std::make_shared<WeightStore>(std::move(*store)), {});
  CHECK(tower.ok());
  auto values = open_safetensors_file(path + "/golden.safetensors");
  CHECK(values.ok());
  return {std::move(*dir), std::move(*tower), std::move(*values)};
}

// The features of each picture of case k, each encoded by itself. `patches`: of all of them.
std::vector<std::vector<float>> encode(Golden& golden, int k, std::span<const float> patches, kernels::Isa isa,
                                       int threads) {
  ThreadPool pool(threads);
  const auto ops = kernels::make_ops(isa, pool);
  const auto grids = golden_values<int32_t>(golden.values, "grids_", k);
  const int64_t width = golden.tower->config().patch_values();
  std::vector<std::vector<float>> out(grids.size() / 3);
  int64_t first = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const VisionGrid grid{grids[3 * i], grids[3 * i + 1], grids[3 * i + 2]};
    const kernels::ConstRows rows(patches.data() + first * width, grid.patches(), width);
    const Status status = golden.tower->encode(
        grid, rows, *ops, [] { return kGoOn; }, out[i]);
    EXPECT_TRUE(status.ok()) << status.to_string();
    first += grid.patches();
  }
  return out;
}

std::vector<std::vector<float>> encode(Golden& golden, int k, kernels::Isa isa, int threads) {
  return encode(golden, k, golden_values<float>(golden.values, "patches_", k), isa, threads);
}

// patches_of() of tests/oracles/vision_tower.py.
std::vector<float> patches_of(int64_t count) {
  std::vector<float> out(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < out.size(); ++i) {
    const uint32_t upper = (static_cast<uint32_t>(i) * 2654435761u) >> 24;
    out[i] = static_cast<float>(upper) / 128.0f - 1.0f;
  }
  return out;
}

// Of all pictures, set by set, as the golden file has them.
std::vector<float> joined(const std::vector<std::vector<float>>& pictures, int sets) {
  std::vector<float> out;
  for (int set = 0; set < sets; ++set) {
    for (const std::vector<float>& picture : pictures) {
      const std::size_t size = picture.size() / static_cast<std::size_t>(sets);
      const auto begin = picture.begin() + static_cast<std::ptrdiff_t>(size) * set;
      out.insert(out.end(), begin, begin + static_cast<std::ptrdiff_t>(size));
    }
  }
  return out;
}

TEST(VisionTowerTest, FeaturesAreThoseOfTransformers) {
  for (const char* name : {"dense", "moe"}) {
    Golden golden = open_golden(name);
    for (int k = 0; k < kCases; ++k) {
      const auto wanted = golden_values<float>(golden.values, "features_", k);
      float greatest = 0;
      for (const float value : wanted) greatest = std::max(greatest, std::abs(value));
      for (const kernels::Isa isa : kernels::kAllIsas) {
        if (!kernels::isa_available(isa)) continue;
        const auto seen = joined(encode(golden, k, isa, 2), golden.tower->config().feature_sets());
        ASSERT_EQ(seen.size(), wanted.size());
        float worst = 0;
        for (std::size_t i = 0; i < seen.size(); ++i) worst = std::max(worst, std::abs(seen[i] - wanted[i]));
        EXPECT_LE(worst / greatest, 1e-4) << name << " case " << k << " " << kernels::isa_name(isa);
      }
    }
  }
}

// Head dimension 72, GELU by erf, no deepstack; tall, wide, the least, more keys than a range, videos of 2 and 5
// frames.
TEST(VisionTowerTest, OddGridsAndVideosAreThoseOfTransformers) {
  Golden golden = open_golden("tower");
  EXPECT_EQ(golden.tower->config().head_dim(), 72);
  EXPECT_EQ(golden.tower->config().activation, VisionActivation::kGelu);
  const auto grids = golden_values<int32_t>(golden.values, "grids_", 0);
  const auto wanted = golden_values<float>(golden.values, "features_", 0);
  int64_t count = 0;
  for (std::size_t i = 0; i < grids.size(); i += 3) count += int64_t{grids[i]} * grids[i + 1] * grids[i + 2];
  const std::vector<float> patches = patches_of(count * golden.tower->config().patch_values());
  for (const kernels::Isa isa : kernels::kAllIsas) {
    if (!kernels::isa_available(isa)) continue;
    SCOPED_TRACE(kernels::isa_name(isa));
    const auto items = encode(golden, 0, patches, isa, 2);
    auto at = wanted.begin();
    for (std::size_t item = 0; item < items.size(); ++item) {
      ASSERT_LE(items[item].size(), static_cast<std::size_t>(wanted.end() - at));
      float worst = 0, greatest = 0;
      for (const float seen : items[item]) {
        worst = std::max(worst, std::abs(seen - *at));
        greatest = std::max(greatest, std::abs(*at++));
      }
      EXPECT_LE(worst / greatest, 1e-4) << "grid " << item;
    }
    EXPECT_EQ(at, wanted.end());
    EXPECT_EQ(encode(golden, 0, patches, isa, 1), items);
  }
}

TEST(VisionTowerTest, ThreadsChangeNoBit) {
  Golden golden = open_golden("dense");
  const auto isa = kernels::resolve_isa();
  ASSERT_TRUE(isa.ok());
  for (int k = 0; k < kCases; ++k) EXPECT_EQ(encode(golden, k, *isa, 1), encode(golden, k, *isa, 3)) << k;
}

TEST(VisionTowerTest, EndsWhenItIsCancelled) {
  Golden golden = open_golden("dense");
  ThreadPool pool(1);
  const auto ops = kernels::make_ops(kernels::Isa::kRef, pool);
  const auto grids = golden_values<int32_t>(golden.values, "grids_", 0);
  const auto patches = golden_values<float>(golden.values, "patches_", 0);
  const VisionGrid grid{grids[0], grids[1], grids[2]};
  const kernels::ConstRows rows(patches.data(), grid.patches(), golden.tower->config().patch_values());
  std::vector<float> features;
  int asked = 0;
  const Status status = golden.tower->encode(
      grid, rows, *ops, [&asked] { return ++asked < 5; }, features);
  EXPECT_EQ(status.code(), StatusCode::kCancelled);
  EXPECT_EQ(asked, 5);
}

TEST(MropeTest, PositionsAreThoseOfTransformers) {
  Golden golden = open_golden("dense");
  for (int k = 0; k < kCases; ++k) {
    const auto prompt = golden_values<int32_t>(golden.values, "prompt_", k);
    const auto grids = golden_values<int32_t>(golden.values, "grids_", k);
    const auto wanted = golden_values<int32_t>(golden.values, "positions_", k);
    const int32_t picture_token = golden.dir.config.vision->image_token_id;
    std::vector<PictureRows> pictures;
    for (std::size_t at = 0; at < prompt.size(); ++at) {
      if (prompt[at] != picture_token || (at > 0 && prompt[at - 1] == picture_token)) continue;
      const std::size_t i = 3 * pictures.size();
      pictures.push_back({static_cast<int32_t>(at), grids[i + 1] / 2, grids[i + 2] / 2});
    }
    const MropePositions seen = mrope_positions(static_cast<int32_t>(prompt.size()), pictures);
    ASSERT_EQ(seen.rows.size(), prompt.size());
    for (std::size_t axis = 0; axis < 3; ++axis) {
      for (std::size_t row = 0; row < prompt.size(); ++row) {
        EXPECT_EQ(seen.rows[row][axis], static_cast<float>(wanted[axis * prompt.size() + row]));
      }
    }
    EXPECT_EQ(seen.delta, static_cast<float>(golden_values<int32_t>(golden.values, "delta_", k)[0]));
  }
}

}  // namespace
}  // namespace millrace
