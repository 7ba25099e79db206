// The tower with deepstack over videos and several items against Hugging Face transformers (tests/golden/vision/shapes,
// tests/oracles/vision_shapes.py): with weights as stored, packed and quantized.
#include <gtest/gtest.h>

#include <cmath>
#include <optional>

#include "base/json.h"
#include "formats/mapped_file.h"
#include "models/testing/model_testing.h"
#include "models/vision/vision_tower.h"

namespace millrace {
namespace {

constexpr int kShapeCases = 4;
constexpr int kLanguageSize = 16;  // out_hidden_size of the golden tower
constexpr int kVocabulary = 7;
constexpr bool kKeepGoing = true;

std::string shapes_path(const std::string& file) {
  return std::string(MILLRACE_SOURCE_DIR) + "/tests/golden/vision/shapes" + file;
}

std::shared_ptr<const VisionTower> open_tower(const LoadOptions& options) {
  const auto text = read_small_file(shapes_path("/config.json"), 1 << 20);
  CHECK(text.ok());
  const auto config = parse_vision_config(Json::parse(*text), kLanguageSize, kVocabulary);
  CHECK(config.ok());
  auto store = WeightStore::open(shapes_path(""));
  CHECK(store.ok());
  auto tower = VisionTower::load(*config, std::make_shared<WeightStore>(std::move(*store)), options);
  CHECK(tower.ok());
  return *tower;
}

// patches_of() of tests/oracles/vision_shapes.py.
std::vector<float> formula_patches(int64_t count) {
  std::vector<float> out(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = static_cast<float>((static_cast<uint32_t>(i) * 2654435761u) >> 24) / 128.0f - 1.0f;
  }
  return out;
}

// The features of all items of a case, set by set: [sets, rows, kLanguageSize]. Each item is encoded by itself.
std::vector<float> encode_items(const VisionTower& tower, const std::vector<int32_t>& grids, kernels::Ops& ops) {
  const int64_t width = tower.config().patch_values();
  const auto sets = static_cast<std::size_t>(tower.config().feature_sets());
  std::vector<std::vector<float>> by_set(sets);
  int64_t first = 0;
  for (std::size_t i = 0; i < grids.size(); i += 3) {
    const VisionGrid grid{grids[i], grids[i + 1], grids[i + 2]};
    const std::vector<float> patches = formula_patches((first + grid.patches()) * width);
    const kernels::ConstRows rows(patches.data() + first * width, grid.patches(), width);
    std::vector<float> features;
    const Status status = tower.encode(
        grid, rows, ops, [] { return kKeepGoing; }, features);
    EXPECT_TRUE(status.ok()) << status.to_string();
    const auto size = static_cast<std::ptrdiff_t>(features.size() / sets);
    for (std::size_t set = 0; set < sets; ++set) {
      const auto begin = features.begin() + size * static_cast<std::ptrdiff_t>(set);
      by_set[set].insert(by_set[set].end(), begin, begin + size);
    }
    first += grid.patches();
  }
  std::vector<float> out;
  for (const std::vector<float>& set : by_set) out.insert(out.end(), set.begin(), set.end());
  return out;
}

double relative_error(const std::vector<float>& seen, const std::vector<float>& wanted) {
  double worst = 0, greatest = 0;
  EXPECT_EQ(seen.size(), wanted.size());
  for (std::size_t i = 0; i < std::min(seen.size(), wanted.size()); ++i) {
    EXPECT_TRUE(std::isfinite(seen[i]));
    worst = std::max(worst, std::abs(double{seen[i]} - wanted[i]));
    greatest = std::max(greatest, std::abs(double{wanted[i]}));
  }
  return worst / greatest;
}

class VisionShapesTest : public ::testing::TestWithParam<kernels::Isa> {
 protected:
  void SetUp() override {
    auto golden = open_safetensors_file(shapes_path("/golden.safetensors"));
    ASSERT_TRUE(golden.ok());
    for (int k = 0; k < kShapeCases; ++k) {
      grids_.push_back(golden_values<int32_t>(*golden, "grids_", k));
      wanted_.push_back(golden_values<float>(*golden, "features_", k));
    }
    packing_.isa = GetParam();
    packing_.pool = &pool_;
  }

  ThreadPool pool_{2};
  std::unique_ptr<kernels::Ops> ops_ = kernels::make_ops(GetParam(), pool_);
  LoadOptions packing_;
  std::vector<std::vector<int32_t>> grids_;
  std::vector<std::vector<float>> wanted_;
};

TEST_P(VisionShapesTest, FeaturesAreThoseOfTransformersStoredAndPacked) {
  const auto stored = open_tower({}), packed = open_tower(packing_);
  for (std::size_t k = 0; k < grids_.size(); ++k) {
    const std::vector<float> seen = encode_items(*stored, grids_[k], *ops_);
    EXPECT_LE(relative_error(seen, wanted_[k]), 1e-4) << "case " << k;
    EXPECT_EQ(encode_items(*packed, grids_[k], *ops_), seen) << "case " << k;
  }
}

// The mergers alone have rows of complete blocks here. Measured: 0.5 to 1.4 %.
TEST_P(VisionShapesTest, QuantizedMergersStayClose) {
  packing_.quantize = DType::kQ8_0;
  const auto quantized = open_tower(packing_);
  for (std::size_t k = 0; k < grids_.size(); ++k) {
    const double error = relative_error(encode_items(*quantized, grids_[k], *ops_), wanted_[k]);
    EXPECT_GT(error, 1e-4) << "nothing was quantized";
    EXPECT_LE(error, 0.03) << "case " << k;
  }
}

std::vector<kernels::Isa> tower_isas() {
  std::vector<kernels::Isa> out;
  for (const kernels::Isa isa : kernels::kAllIsas) {
    if (kernels::isa_available(isa)) out.push_back(isa);
  }
  return out;
}

INSTANTIATE_TEST_SUITE_P(Isas, VisionShapesTest, ::testing::ValuesIn(tower_isas()),
                         [](const auto& info) { return std::string(kernels::isa_name(info.param)); });

}  // namespace
}  // namespace millrace
